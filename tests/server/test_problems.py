"""Errors in one form."""

import logging
import re
from pathlib import Path

import httpx
import psycopg
import pytest

from milepost import Milepost, NoDatabase, SchemaMismatch, Unavailable, errors
from milepost.server.http import handlers
from milepost.server.problems import (
    ALL_KINDS,
    INTERNAL,
    INVALID,
    KIND_OF_ERROR,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    NOT_JSON,
    NOT_READY,
    PROBLEM_TYPE_BASE,
    UNAVAILABLE,
    problem_response,
)
from milepost.throttled_warnings import ThrottledWarnings
from server.answers import problem

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "problems.md"


def test_every_error_of_the_library_has_its_kind() -> None:
    known = [
        cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.MilepostError)
    ]
    assert len(known) > 15
    assert not [cls.__name__ for cls in known if cls not in KIND_OF_ERROR]


def test_kinds_are_told_apart() -> None:
    assert len({kind.slug for kind in ALL_KINDS}) == len(ALL_KINDS)


def test_the_page_has_every_kind() -> None:
    documented = dict(
        re.findall(rf"^### `{PROBLEM_TYPE_BASE}([a-z-]+)` \((\d+)\)$", PAGE.read_text(), re.MULTILINE)
    )
    assert documented == {kind.slug: str(kind.status) for kind in ALL_KINDS}


def test_a_value_that_the_database_refuses_is_the_clients_mistake() -> None:
    told = problem_response(psycopg.DataError("text cannot contain NUL\nLINE 1: select"))
    assert told.status == INVALID.status
    assert b"PostgreSQL cannot take this value: text cannot contain NUL" in told.body
    assert b"LINE 1" not in told.body
    assert problem_response(psycopg.errors.UndefinedTable("no table")).status == INTERNAL.status


async def test_an_error_that_nobody_foresaw_tells_nothing(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> int:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(mp, "head", broken)
    answer = await client.get("/v1/head")
    problem(answer, INTERNAL, "a fault of the server")
    assert "hunter2" not in answer.text
    assert "RuntimeError" not in answer.text
    [record] = [record for record in caplog.records if record.name == "milepost.server"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("error", "kind", "transient"),
    [
        (SchemaMismatch("run `milepost schema migrate`"), NOT_READY, False),
        (NoDatabase("no database"), NOT_READY, False),
    ],
)
async def test_errors_of_the_database(
    mp: Milepost,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    error: errors.MilepostError,
    kind: object,
    transient: bool,
) -> None:
    async def broken() -> int:
        raise error

    monkeypatch.setattr(mp, "head", broken)
    found = problem(await client.get("/v1/head"), kind, str(error))  # type: ignore[arg-type]
    assert found["transient"] is transient


async def test_a_database_that_is_away_is_not_talked_about(
    mp: Milepost, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away() -> int:
        raise Unavailable('PostgreSQL: connection to "db-7.internal" failed for user "shop"')

    monkeypatch.setattr(mp, "head", away)
    monkeypatch.setattr(handlers, "_complaints", ThrottledWarnings(handlers.logger, "the database"))
    for _ in range(3):
        answer = await client.get("/v1/head")
        assert problem(answer, UNAVAILABLE, "try again in a moment")["transient"] is True
        assert "db-7" not in answer.text
    [line] = [record.getMessage() for record in caplog.records if record.name == "milepost.server"]
    assert "db-7.internal" in line


async def test_where_there_is_nothing(client: httpx.AsyncClient) -> None:
    for path in ("/", "/v1", "/v2/head", "/v1/streams/a/b/c", "/schema", "/v1/head/x", "/../etc/passwd", "/%00x"):
        answer = await client.get(path)
        if path == "/%00x":
            assert answer.status_code == 400
        else:
            problem(answer, NOT_FOUND, "/openapi.json")


async def test_methods(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/streams/a-1")
    problem(answer, METHOD_NOT_ALLOWED, "takes GET, POST")
    assert answer.headers["allow"] == "GET, POST"


async def test_options_is_a_method_that_no_path_has(client: httpx.AsyncClient) -> None:
    for path, methods in (await client.get("/openapi.json")).json()["paths"].items():
        answer = await client.options(path.format(group="default", name="a", stream="b", target="c"))
        problem(answer, METHOD_NOT_ALLOWED)
        assert {*answer.headers["allow"].lower().split(", ")} == {*methods}, path


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_a_body_that_is_not_json(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    problem(await client.post("/v1/streams/a-1", content=b'{"type": "a"}', headers=headers), NOT_JSON)


async def test_json_with_a_character_set(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = await client.post("/v1/streams/a-1", content=b'{"type": "a"}', headers=headers)
    assert answer.status_code == 200


def test_text_that_cannot_be_sent_is_spelled_out() -> None:
    answer = problem_response(errors.UnknownSubscription("a\ud800b"))
    assert rb"a\\ud800b" in answer.body
