"""Who may do what."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from milepost import InvalidMessage, Milepost, MilepostError
from milepost.postgres.pool import translate_errors
from milepost.server import create_app
from milepost.server.access import authentication
from milepost.server.access.authentication import (
    FAILED_ATTEMPTS_SECONDS,
    MAX_FAILED_ATTEMPTS,
    MAX_REMEMBERED_ADDRESSES,
    FailedAttempts,
)
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore, hash_secret, make_secret
from milepost.server.problems import FORBIDDEN, TOO_MANY_ATTEMPTS, UNAUTHENTICATED, UNAVAILABLE
from server.answers import done, problem
from support import MakeMilepost, expire_token, qualified


@pytest.fixture
def tokens(mp: Milepost) -> TokenStore:
    return TokenStore(mp)


@pytest.fixture
async def guarded(mp: Milepost) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that asks for tokens, and is not on its machine."""
    transport = httpx.ASGITransport(create_app(mp), client=("198.51.100.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://milepost.example") as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


REQUESTS = {
    TokenRole.READ: [
        ("GET", "/v1/streams/a-1"),
        ("GET", "/v1/streams/a-1/last"),
        ("GET", "/v1/messages"),
        ("GET", "/v1/head"),
        ("GET", "/v1/follow"),
        ("GET", "/v1/trace/a-1"),
        ("GET", "/v1/subscriptions"),
        ("GET", "/v1/subscriptions/a/b"),
        ("GET", "/v1/subscriptions/a/b/statistics"),
        ("GET", "/v1/subscriptions/a/b/move"),
        ("GET", "/v1/subscriptions/a/b/replay"),
        ("GET", "/v1/subscriptions/a/b/deliveries"),
        ("GET", "/v1/subscriptions/a/b/deliveries/count"),
        ("GET", "/v1/subscriptions/a/b/progress/a-1"),
        ("GET", "/v1/subscriptions/a/b/caught-up"),
        ("POST", "/v1/filter/check"),
        ("POST", "/v1/filter/evaluate"),
        ("POST", "/v1/filter/explain"),
        ("GET", "/v1/nodes"),
        ("GET", "/metrics"),
    ],
    TokenRole.APPEND: [("POST", "/v1/streams/a-1"), ("POST", "/v1/streams")],
    TokenRole.CONSUME: [("POST", "/v1/subscriptions/a/b/pull"), ("POST", "/v1/settle")],
    TokenRole.OPERATE: [
        ("POST", "/v1/subscriptions"),
        ("PATCH", "/v1/subscriptions/a/b"),
        ("DELETE", "/v1/subscriptions/a/b"),
        ("POST", "/v1/subscriptions/a/b/pause"),
        ("POST", "/v1/subscriptions/a/b/resume"),
        ("POST", "/v1/subscriptions/a/b/move"),
        ("POST", "/v1/subscriptions/a/b/replay"),
        ("POST", "/v1/subscriptions/a/b/deliveries/retry"),
        ("POST", "/v1/subscriptions/a/b/deliveries/skip"),
    ],
}


class TestRoles:
    @pytest.mark.parametrize("role", TokenRole)
    async def test_each_request_takes_its_role(
        self, tokens: TokenStore, guarded: httpx.AsyncClient, role: TokenRole
    ) -> None:
        """Every other role is refused, and its own gets as far as the question whether the request makes sense."""
        others = bearer(await tokens.make("others", set(TokenRole) - {role}))
        own = bearer(await tokens.make("own", {role}))
        for method, path in REQUESTS[role]:
            found = problem(await guarded.request(method, path, headers=others), FORBIDDEN, role)
            assert found["role"] == role
            if path != "/v1/follow":
                answer = await guarded.request(method, path, headers=own)
                assert answer.status_code not in (401, 403, 429), (method, path)

    async def test_every_request_is_here(self, guarded: httpx.AsyncClient) -> None:
        described = (await guarded.get("/openapi.json")).json()["paths"]
        known = {(method, path) for requests in REQUESTS.values() for method, path in requests}
        assert len(known) == sum(
            "security" in operation for path in described.values() for operation in path.values()
        )

    async def test_what_takes_none(self, guarded: httpx.AsyncClient) -> None:
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await guarded.get(path)).status_code == 200


class TestTokens:
    async def test_without_one(self, guarded: httpx.AsyncClient) -> None:
        answer = await guarded.get("/v1/head")
        problem(answer, UNAUTHENTICATED, "milepost token make")
        assert answer.headers["www-authenticate"] == 'Bearer realm="milepost"'

    @pytest.mark.shard("hostile", fast=["Bearer", "mp_x", "Bearer \\xfc"])
    @pytest.mark.parametrize(
        "header",
        [
            "Bearer",
            "Bearer ",
            "Basic YTpi",
            "mp_x",
            "Bearer mp_x",
            "Bearer " + "x" * 10_000,
            "bearer\tx",
            "Bearer ü",
        ],
    )
    async def test_what_is_no_token(self, guarded: httpx.AsyncClient, header: str) -> None:
        answer = await guarded.get("/v1/head", headers=[(b"authorization", header.encode("latin-1"))])
        problem(answer, UNAUTHENTICATED)

    async def test_a_body_is_not_read_without_one(self, guarded: httpx.AsyncClient) -> None:
        read = False

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            read = True
            yield b"{}"

        headers = {"content-type": "application/json"}
        problem(await guarded.post("/v1/streams/a-1", content=body(), headers=headers), UNAUTHENTICATED)
        assert not read

    async def test_only_a_hash_is_stored(self, mp: Milepost, tokens: TokenStore) -> None:
        secret = await tokens.make("shop", {TokenRole.READ})
        async with mp.log.database.connection() as connection:
            cursor = await connection.execute(qualified("select t::text, hash from {}.tokens t", mp))
            [(text, digest)] = await cursor.fetchall()
        assert secret not in text
        assert digest == hash_secret(secret)
        assert len({make_secret() for _ in range(100)}) == 100
        assert all(len(make_secret()) == 46 for _ in range(10))

    async def test_names(self, tokens: TokenStore) -> None:
        await tokens.make("shop", {TokenRole.READ})
        with pytest.raises(MilepostError, match="there is a token 'shop' already"):
            await tokens.make("shop", {TokenRole.READ})
        assert await tokens.revoke("shop")
        assert not await tokens.revoke("shop")
        await tokens.make("shop", {TokenRole.APPEND})
        assert [(each.roles, each.revoked is None) for each in await tokens.all()] == [
            (("read",), False),
            (("append",), True),
        ]
        for name in ("", "a\0b", "x" * 600, "\ud800"):
            with pytest.raises(MilepostError):
                await tokens.make(name, {TokenRole.READ})

    async def test_one_made_just_now_opens(self, tokens: TokenStore, guarded: httpx.AsyncClient) -> None:
        problem(await guarded.get("/v1/head", headers=bearer("mp_nothing")), UNAUTHENTICATED)
        token = await tokens.make("shop", {TokenRole.READ})
        async with asyncio.timeout(60):
            while (await guarded.get("/v1/head", headers=bearer(token))).status_code != 200:
                await asyncio.sleep(0.02)

    async def test_one_revoked_elsewhere_opens_nothing(
        self,
        make_mp: MakeMilepost,
        tokens: TokenStore,
        guarded: httpx.AsyncClient,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        token = await tokens.make("shop", {TokenRole.READ})
        done(await guarded.get("/v1/head", headers=bearer(token)))
        async with make_mp() as other:
            await TokenStore(other).revoke("shop")
        monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.05)
        async with asyncio.timeout(60):
            while (answer := await guarded.get("/v1/head", headers=bearer(token))).status_code == 200:
                await asyncio.sleep(0.02)
        problem(answer, UNAUTHENTICATED, "revoked")

    async def test_what_is_known_serves_for_seconds(
        self, mp: Milepost, tokens: TokenStore, guarded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = 0
        in_force = TokenStore.in_force

        async def counted(self: TokenStore) -> object:
            nonlocal asked
            asked += 1
            return await in_force(self)

        monkeypatch.setattr(TokenStore, "in_force", counted)
        monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 3600)
        token = await tokens.make("shop", {TokenRole.READ})
        await asyncio.gather(*(guarded.get("/v1/head", headers=bearer(token)) for _ in range(20)))
        assert asked == 1

    async def test_its_use_is_noted(self, tokens: TokenStore, guarded: httpx.AsyncClient) -> None:
        token = await tokens.make("shop", {TokenRole.READ})
        await tokens.make("other", {TokenRole.READ})
        done(await guarded.get("/v1/head", headers=bearer(token)))
        async with asyncio.timeout(60):
            while not any(each.last_used for each in await tokens.all()):
                # A look at the tokens notes who was here before it.
                await guarded.get("/v1/head", headers=bearer("mp_unknown"))
                await asyncio.sleep(0.1)
        assert [(each.name, each.last_used is not None) for each in await tokens.all()] == [
            ("other", False),
            ("shop", True),
        ]

    async def test_a_role_of_a_newer_program(
        self, mp: Milepost, tokens: TokenStore, guarded: httpx.AsyncClient
    ) -> None:
        token = await tokens.make("shop", {TokenRole.READ})
        async with mp.log.database.connection() as connection:
            await connection.execute(qualified("update {}.tokens set roles = array['read', 'fly']", mp))
        done(await guarded.get("/v1/head", headers=bearer(token)))
        assert (await tokens.all())[0].roles == ("read", "fly")

    async def test_nobody_gets_in_while_the_tokens_are_not_known(
        self, mp: Milepost, guarded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def execute(*_: object) -> object:
            with translate_errors():
                raise psycopg.OperationalError("the server is away")

        monkeypatch.setattr(mp.log.database, "execute", execute)
        answer = await guarded.get("/v1/head", headers=bearer("mp_x"))
        problem(answer, UNAVAILABLE)
        assert answer.headers["retry-after"] == "1"

    async def test_no_token_is_logged(
        self, tokens: TokenStore, guarded: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        token = await tokens.make("shop", {TokenRole.READ})
        await guarded.get("/v1/head", headers=bearer(token))
        await guarded.get("/v1/head", headers=bearer("mp_wrong_and_secret"))
        answer = await guarded.get("/v1/head", headers=bearer("mp_wrong_and_secret"))
        told = [record.getMessage() for record in caplog.records]
        assert not any(
            secret in line for line in [*told, answer.text] for secret in (token, "mp_wrong_and_secret")
        )


class TestExpiry:
    async def test_one_that_has_expired_opens_nothing(
        self, mp: Milepost, tokens: TokenStore, guarded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(authentication, "TOKENS_FRESH_SECONDS", 0.0)
        short = bearer(await tokens.make("short", {TokenRole.READ}, expires=timedelta(hours=1)))
        long = bearer(await tokens.make("long", {TokenRole.READ}, expires=timedelta(days=30)))
        endless = bearer(await tokens.make("endless", {TokenRole.READ}))
        for each in (short, long, endless):
            done(await guarded.get("/v1/head", headers=each))
        later = "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
        later += "as $$ select clock_timestamp() + interval '61 minutes' $$"
        await mp.log.database.execute(qualified(later, mp), {})
        problem(await guarded.get("/v1/head", headers=short), UNAUTHENTICATED, "expired")
        for each in (long, endless):
            done(await guarded.get("/v1/head", headers=each))
        assert {each.name: each.in_force for each in await tokens.all()} == {
            "endless": True,
            "long": True,
            "short": False,
        }

    async def test_when(self, mp: Milepost, tokens: TokenStore) -> None:
        """Whatever clock this program has, the database's says when."""
        [(now,)] = await mp.log.database.execute(qualified("select {}.clock()", mp), {})
        await tokens.make("at", {TokenRole.READ}, expires=now + timedelta(hours=1))
        await tokens.make("after", {TokenRole.READ}, expires=timedelta(days=30))
        await tokens.make("never", {TokenRole.READ})
        found = {each.name: each.expires for each in await tokens.all()}
        assert found["at"] == now + timedelta(hours=1)
        assert found["after"] is not None
        assert timedelta(days=30) <= found["after"] - now < timedelta(days=30, hours=1)
        assert found["never"] is None
        for wrong in (now, timedelta(0), timedelta(seconds=-1), timedelta.max, datetime.max.replace(tzinfo=UTC)):
            with pytest.raises(InvalidMessage, match="expires: must be later than now and within 100 years"):
                await tokens.make("wrong", {TokenRole.READ}, expires=wrong)
        assert len(await tokens.all()) == 3

    async def test_the_name_of_an_expired_one_may_be_given_again(self, mp: Milepost, tokens: TokenStore) -> None:
        await tokens.make("shop", {TokenRole.READ})
        await expire_token(mp, "shop")
        await tokens.make("shop", {TokenRole.APPEND})
        [old, new] = await tokens.all()
        assert (old.in_force, old.revoked) == (False, old.expires)
        assert (new.in_force, new.roles, new.expires) == (True, ("append",), None)


class TestAttempts:
    async def test_too_many(self, tokens: TokenStore, guarded: httpx.AsyncClient) -> None:
        token = await tokens.make("shop", {TokenRole.READ})
        for _ in range(MAX_FAILED_ATTEMPTS):
            problem(await guarded.get("/v1/head", headers=bearer("mp_x")), UNAUTHENTICATED)
        answer = await guarded.get("/v1/head", headers=bearer("mp_x"))
        assert problem(answer, TOO_MANY_ATTEMPTS, "198.51.100.7")["transient"] is True
        assert 0 < int(answer.headers["retry-after"]) <= FAILED_ATTEMPTS_SECONDS
        # Whoever shares the address and has a token is not kept out.
        done(await guarded.get("/v1/head", headers=bearer(token)))

    def test_by_address_and_time(self) -> None:
        now = 1000.0
        attempts = FailedAttempts(lambda: now)
        for _ in range(MAX_FAILED_ATTEMPTS):
            assert attempts.seconds_blocked("192.0.2.1") == 0
            attempts.note_failure("192.0.2.1")
            now += 1
        assert attempts.seconds_blocked("192.0.2.1") == FAILED_ATTEMPTS_SECONDS - MAX_FAILED_ATTEMPTS
        assert attempts.seconds_blocked("192.0.2.2") == 0
        now += FAILED_ATTEMPTS_SECONDS - MAX_FAILED_ATTEMPTS
        assert attempts.seconds_blocked("192.0.2.1") == 0

    def test_a_network_of_ipv6_is_one(self) -> None:
        attempts = FailedAttempts()
        for number in range(MAX_FAILED_ATTEMPTS):
            attempts.note_failure(f"2001:db8::{number:x}")
        assert attempts.seconds_blocked("2001:db8::ffff") > 0
        assert attempts.seconds_blocked("2001:db8:0:1::1") == 0
        for _ in range(MAX_FAILED_ATTEMPTS):
            attempts.note_failure("::ffff:192.0.2.1")
        assert attempts.seconds_blocked("192.0.2.1") > 0

    def test_memory_is_bounded(self) -> None:
        attempts = FailedAttempts()
        for number in range(MAX_REMEMBERED_ADDRESSES + 5):
            attempts.note_failure(f"host-{number}")
        assert len(attempts._failures) == MAX_REMEMBERED_ADDRESSES
