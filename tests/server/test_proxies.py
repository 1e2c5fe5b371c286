"""Behind a proxy: who is believed, and a real nginx with the configuration of the guide."""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import milepost
from conftest import absent
from milepost import Milepost, NewMessage
from milepost.console import Console
from milepost.server import create_app
from milepost.server.access.permissions import ALL_ROLES
from milepost.server.access.tokens import TokenStore
from milepost.server.http.asgi import Scope
from milepost.server.http.origin import TrustedProxies
from server.websocket.conftest import serving
from servers import NGINX, free_port, make_certificate
from support import MakeMilepost

GUIDE = Path(__file__).parents[2] / "docs/guides/server.md"


def seen(peer: str, **headers: str) -> tuple[str, str]:
    """Return the client and the scheme of a request as a server sees it that trusts some proxies."""
    scope: Scope = {
        "type": "http",
        "scheme": "http",
        "client": (peer, 1234),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    found = TrustedProxies(["10.0.0.0/8", "127.0.0.1", "::1"]).original_scope(scope)
    return found["client"][0], found["scheme"]


@pytest.mark.parametrize(
    ("headers", "client", "scheme"),
    [
        ({}, "10.0.0.1", "http"),
        ({"x_forwarded_for": "192.0.2.7", "x_forwarded_proto": "https"}, "192.0.2.7", "https"),
        ({"x_forwarded_for": "1.1.1.1, 192.0.2.7, 10.2.3.4"}, "192.0.2.7", "http"),
        ({"x_forwarded_for": "10.9.9.9"}, "10.0.0.1", "http"),
        ({"x_forwarded_for": " , ,192.0.2.7:80"}, "192.0.2.7", "http"),
        ({"x_forwarded_proto": "https, http"}, "10.0.0.1", "http"),
        ({"x_forwarded_proto": "HTTPS"}, "10.0.0.1", "https"),
        ({"x_forwarded_proto": "javascript"}, "10.0.0.1", "http"),
        ({"forwarded": "for=1.1.1.1;proto=http, For=192.0.2.7;Proto=https"}, "192.0.2.7", "https"),
        ({"forwarded": 'for="[2001:db8::7]:4711";proto=https;host=a'}, "2001:db8::7", "https"),
        ({"forwarded": "for=_hidden"}, "_hidden", "http"),
        # Several hops: how the client asked the first proxy counts, and not how one asked the next.
        ({"forwarded": "for=192.0.2.7;proto=https, for=10.2.3.4;proto=http"}, "192.0.2.7", "https"),
        ({"forwarded": "for=1.1.1.1;proto=https, for=192.0.2.7;proto=http, for=10.2.3.4"}, "192.0.2.7", "http"),
        ({"x_forwarded_for": "192.0.2.7, 10.2.3.4", "x_forwarded_proto": "https, http"}, "192.0.2.7", "https"),
        ({"x_forwarded_for": "192.0.2.7, 10.2.3.4", "x_forwarded_proto": "https"}, "192.0.2.7", "https"),
        (
            {"x_forwarded_for": "192.0.2.7, 10.2.3.4", "x_forwarded_proto": "https, https, http"},
            "192.0.2.7",
            "http",
        ),
        # A proxy sets one of the two headers, and passes on the other as the client sent it.
        ({"x_forwarded_for": "192.0.2.7", "forwarded": "for=1.1.1.1;proto=https"}, "10.0.0.1", "http"),
        ({"x_forwarded_for": "192.0.2.7", "forwarded": "for=192.0.2.7"}, "192.0.2.7", "http"),
        ({"forwarded": "x" * 10_000}, "10.0.0.1", "http"),
        ({"x_forwarded_for": "y" * 10_000}, "y" * 64, "http"),
    ],
)
def test_what_a_trusted_proxy_says(headers: dict[str, str], client: str, scheme: str) -> None:
    assert seen("10.0.0.1", **headers) == (client, scheme)
    assert seen("::ffff:10.0.0.1", **headers) in [(client, scheme), ("::ffff:10.0.0.1", scheme)]


def test_lines_of_one_header_are_read_together() -> None:
    """The last line is of the proxy that was asked last, the one before of the proxy before it."""
    lines = [
        (b"x-forwarded-for", b"1.1.1.1"),
        (b"x-forwarded-for", b"192.0.2.7"),
        (b"x-forwarded-for", b"10.2.3.4"),
    ]
    scope: Scope = {"type": "http", "scheme": "http", "client": ("10.0.0.1", 1), "headers": lines}
    assert TrustedProxies(["10.0.0.0/8"]).original_scope(scope)["client"][0] == "192.0.2.7"


def test_a_proxy_that_says_two_things(caplog: pytest.LogCaptureFixture) -> None:
    seen("10.0.0.1", x_forwarded_for="192.0.2.7", forwarded="for=1.1.1.1")
    assert "a proxy at 10.0.0.1 says one thing in Forwarded and another in X-Forwarded-For" in caplog.text


def test_nobody_else_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    said = {"x_forwarded_for": "127.0.0.1", "x_forwarded_proto": "https", "forwarded": "for=127.0.0.1;proto=https"}
    for peer in ("192.0.2.1", "11.0.0.1", "unix", ""):
        assert seen(peer, **said) == (peer, "http")
    assert "a proxy at 192.0.2.1 says how it was asked, and is not believed" in caplog.text


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0.1/8", "10.0.0.0/99", "http://10.0.0.1"])
def test_what_is_no_address_of_a_proxy(mp: Milepost, address: str) -> None:
    with pytest.raises(ValueError, match="an address or a network"):
        create_app(mp, trusted_proxies=[address])


@asynccontextmanager
async def nginx(folder: Path, server: str) -> AsyncIterator[tuple[str, Path]]:
    """An nginx with the site of the guide, before a server; its address and its certificate."""
    if not NGINX.exists():
        absent("nginx")
    certificate, key = await asyncio.to_thread(make_certificate, folder)
    port = free_port()
    [site] = re.findall(r"^```nginx\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    for there, here in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "milepost.example": "localhost",
        "/etc/ssl/milepost.pem": str(certificate),
        "/etc/ssl/milepost.key": str(key),
        "http://127.0.0.1:8480": server,
    }.items():
        assert there in site
        site = site.replace(there, here)
    paths = [f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder / 'pid'}; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off; {' '.join(paths)}\n{site}}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", folder, "-c", folder / "nginx.conf", stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            while not await _listens(port):
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.02)
        yield f"https://localhost:{port}", certificate
    finally:
        process.kill()
        await process.communicate()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_behind_nginx(mp: Milepost, make_mp: MakeMilepost, tmp_path: Path) -> None:
    """The console, an append of several MiB, what follows, and consumers."""
    await mp.create_subscription("shipping", types="small")
    secret = await TokenStore(mp).make("ada", ALL_ROLES)
    async with (
        serving(make_mp(), access="tokens", pages=Console, trusted_proxies=["127.0.0.1"]) as server,
        nginx(tmp_path, server.address) as (address, certificate),
    ):
        context = ssl.create_default_context(cafile=str(certificate))
        async with httpx.AsyncClient(base_url=address, verify=context, timeout=60) as browser:
            browser.headers["accept"] = "text/html"
            csrf = (await browser.get("/console/login")).text.split('name="csrf" value="')[1].split('"')[0]
            headers = {"origin": address, "sec-fetch-site": "same-origin"}
            # What only a proxy may say, a client may say too: the site of the guide does not pass it on.
            headers |= {"forwarded": "for=6.6.6.6;proto=http", "x-forwarded-for": "6.6.6.6"}
            answer = await browser.post("/console/login", data={"csrf": csrf, "token": secret}, headers=headers)
            assert answer.status_code == 303, answer.text
            [cookie] = [each for each in answer.headers.get_list("set-cookie") if "milepost_session" in each]
            assert "Secure" in cookie.split("; ")
            page = await browser.get("/console")
            assert page.status_code == 200
            assert "strict-transport-security" in page.headers
        async with milepost.connect(address, token=secret, ca=str(certificate)) as client, asyncio.timeout(90):
            await client.append("a-1", [NewMessage("large", "x" * 1_000_000)] * 4)
            follower = client.follow(types="small")
            coming = asyncio.ensure_future(anext(follower))
            await client.append("a-1", NewMessage("small", 1))
            assert (await coming).data == 1
            await follower.aclose()
            async with client.consumer("shipping") as consumer:
                await (await anext(consumer)).ack()
