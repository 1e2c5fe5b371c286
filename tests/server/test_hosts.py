"""A server that asks for no token serves this machine alone, and no web page."""

import httpx
import pytest

from milepost import Milepost
from milepost.names import is_loopback, is_loopback_url
from milepost.server import create_app
from milepost.server.problems import NOT_LOCAL, WRONG_HOST
from server.answers import done, problem


def client(mp: Milepost, address: str = "127.0.0.1", **options: object) -> httpx.AsyncClient:
    app = create_app(mp, **{"access": "local", **options})  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, client=(address, 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8480")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8480", "127.0.0.1", "127.0.0.1:8480", "[::1]", "[::1]:8480", "LOCALHOST:1"]
)
async def test_names_of_this_machine(mp: Milepost, host: str) -> None:
    async with client(mp) as local:
        done(await local.get("/v1/head", headers={"host": host}))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8480",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost/evil.example",
        "localhost?evil.example",
        "",
        "[",
        "127.0.0.1.x",
    ],
)
async def test_other_names(mp: Milepost, host: str) -> None:
    async with client(mp) as local:
        for path in ("/v1/head", "/healthz", "/openapi.json", "/nothing"):
            problem(await local.get(path, headers={"host": host}), WRONG_HOST)


async def test_names_that_were_allowed(mp: Milepost) -> None:
    async with client(mp, hosts={"milepost.internal"}) as local:
        done(await local.get("/v1/head", headers={"host": "Milepost.internal:80"}))
        problem(await local.get("/v1/head"), WRONG_HOST, "--allow-host")


async def test_from_another_machine(mp: Milepost) -> None:
    for address in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"):
        async with client(mp, address) as remote:
            problem(await remote.get("/v1/head"), NOT_LOCAL, "--tokens")
    for address in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        async with client(mp, address) as local:
            done(await local.get("/v1/head"))


@pytest.mark.parametrize(
    "name", ["forwarded", "x-forwarded-for", "x-real-ip", "x-forwarded-host", "x-forwarded-proto", "via"]
)
async def test_through_a_proxy(mp: Milepost, name: str) -> None:
    async with client(mp) as local:
        problem(await local.get("/v1/head", headers={name: "192.0.2.1"}), NOT_LOCAL, "proxy")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost", "http://localhost:9999", "file://", "http://["]
)
async def test_from_a_page_of_another_site(mp: Milepost, origin: str) -> None:
    async with client(mp) as local:
        answer = await local.post("/v1/subscriptions/a/b/pause", headers={"origin": origin})
        problem(answer, NOT_LOCAL, "another site")


async def test_from_its_own_page(mp: Milepost) -> None:
    async with client(mp) as local:
        done(await local.get("/v1/head", headers={"origin": "http://localhost:8480"}))


async def test_no_other_site_is_told_that_it_may(mp: Milepost) -> None:
    async with client(mp, access="open") as anybody:
        answer = await anybody.options("/v1/head", headers={"origin": "http://evil.example"})
        assert not any(name.startswith("access-control") for name in answer.headers)


async def test_open_leaves_it_to_others(mp: Milepost) -> None:
    async with client(mp, "192.0.2.1", access="open") as anybody:
        done(await anybody.get("/v1/head", headers={"host": "x", "x-forwarded-for": "y", "origin": "http://z"}))


def test_a_word_that_is_none(mp: Milepost) -> None:
    with pytest.raises(ValueError, match='"tokens", "local" or "open" is wanted'):
        create_app(mp, access="everybody")  # type: ignore[arg-type]


def test_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.1.2.3", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org", ""]))


def test_addresses_that_only_the_machine_itself_reaches() -> None:
    own = ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "0", "[::]"]
    names = ["localhost", "LOCALHOST", "localhost.", "milepost.localhost", "milepost.localhost."]
    for host in (*own, *names):
        assert is_loopback_url(f"https://{host}:8480"), host
    for host in ("192.0.2.1", "128.1", "[2001:db8::1]", "localhost.example", "mylocalhost", "milepost-1", "ж", ""):
        assert not is_loopback_url(f"https://{host}:8480"), host
