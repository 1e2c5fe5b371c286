"""Hostile input in every field of every route, as the description lists them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote_from_bytes
from uuid import uuid4

import httpx
import psycopg
import pytest

from milepost import Milepost, NewMessage, Retry
from milepost.server import Server
from milepost.server.http.asgi import Event, Receive, Scope, Send
from server.hostile import HERE, text_of, values, written

Schema = dict[str, Any]
Operation = tuple[str, str, Schema]
"""Method, path, and what the description says of it."""

WORDS = {"group": "default", "name": "emails", "stream": "order-1", "target": "order-1"}
"""What is in a path where nothing hostile is."""
NEEDED = {"timeout": "0.05", "to": "beginning", "start": "beginning"}
"""What is asked for where nothing hostile is, of those operations that take it."""
LONGEST = 33_000
"""Characters in an address, a little more than a server takes."""
ELSEWHERE = {"404", "405"}
"""What is answered where something hostile in a path leads to another route, or to none."""
NESTED = 3
"""How deep hostile values go into what is itself a field."""


class Impatient:
    """Nobody waits for the end of an answer that goes on for ever."""

    def __init__(self, app: Server) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, asked, more = asyncio.Event(), False, True

        async def note(message: Event) -> None:
            nonlocal more
            await send(message)
            started.set()
            more = message["type"] == "http.response.start" or bool(message.get("more_body"))

        async def leave() -> Any:
            nonlocal asked
            if asked:
                await started.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            asked = not message.get("more_body")
            return message

        await self._app(scope, leave, note)
        if more:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
async def client(app: Server) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Impatient(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def operations(description: Schema) -> list[Operation]:
    """All of them; what deletes comes last."""
    found = [(method, path, of) for path, each in description["paths"].items() for method, of in each.items()]
    return sorted(found, key=lambda each: each[0] == "delete")


# Requests with one hostile value


def addresses(path: str, operation: Schema, value: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """An address, and headers, for each parameter; the first has nothing hostile."""
    parameters = {each["name"]: each["in"] for each in operation.get("parameters", ())}
    hostile = quote_from_bytes(text_of(value), safe="")[:LONGEST]
    usual = {name: NEEDED[name] for name in parameters if name in NEEDED}
    yield _address(path, WORDS, usual), {}
    for name, where in parameters.items():
        if where == "path":
            yield _address(path, {**WORDS, name: hostile}, usual), {}
        elif where == "query":
            yield _address(path, WORDS, {**usual, name: hostile}), {}
        else:
            yield _address(path, WORDS, usual), {name: text_of(value)}
    yield _address(path, WORDS, {**usual, hostile: "1"}), {}


def _address(path: str, words: Mapping[str, str], query: Mapping[str, str]) -> str:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{path.format_map(words)}?{asked}"


def bodies(schema: Schema, schemas: Mapping[str, Schema], depth: int = NESTED) -> Iterator[Any]:
    """Bodies with `HERE` in each place that a schema has."""
    schema = _resolved(schema, schemas)
    yield HERE
    if not depth:
        return
    for option in schema.get("oneOf") or schema.get("anyOf") or ():
        yield from bodies(option, schemas, depth)
    if "items" in schema:
        yield from ([each] for each in bodies(schema["items"], schemas, depth - 1))
    if isinstance(more := schema.get("additionalProperties"), dict):
        yield {HERE: _sample(more, schemas)}
        yield from ({"a": each} for each in bodies(more, schemas, depth - 1))
    if "properties" in schema:
        usual = _sample(schema, schemas)
        yield {**usual, HERE: 1}
        for name, field in schema["properties"].items():
            yield from ({**usual, name: each} for each in bodies(field, schemas, depth - 1))


def _resolved(schema: Schema, schemas: Mapping[str, Schema]) -> Schema:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _sample(schema: Schema, schemas: Mapping[str, Schema]) -> Any:
    """The smallest value that a schema allows."""
    schema = _resolved(schema, schemas)
    if options := schema.get("oneOf", schema.get("anyOf")):
        return _sample(options[0], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: _sample(fields[name], schemas) for name in schema.get("required", ())}
        case "array":
            return [_sample(schema["items"], schemas)]
        case "string":
            return "a-1"
        case "boolean":
            return True
    return 1


# What comes of them


@pytest.fixture
async def emails(mp: Milepost) -> Milepost:
    """Something to read, to pull and to decide about."""
    await mp.create_subscription("tasks", category="task", tracking="all", retry=Retry(delay=3600))
    await mp.create_subscription("emails", tracking="all")
    await mp.append("order-1", [NewMessage("a", {"n": n}, properties={"p": n}) for n in range(3)])
    first, *_ = await mp.pull("emails")
    await mp.settle(park=first, reason="broken")
    return mp


@pytest.mark.parametrize("value", values(fast=["half a character"]))
async def test_is_refused_or_taken_as_what_it_is(
    emails: Milepost, client: httpx.AsyncClient, database_url: str, schema: str, value: str
) -> None:
    description = (await client.get("/openapi.json")).json()
    tables = _tables(database_url, schema)
    sent = 0
    for method, path, operation in operations(description):
        for address, headers in addresses(path, operation, value):
            content = _usual_body(operation, description) if "requestBody" in operation else b""
            _check(operation, await _send(client, method, address, headers, content))
            sent += 1
        if "requestBody" not in operation:
            continue
        media = operation["requestBody"]["content"]["application/json"]
        found = bodies(media["schema"], description["components"]["schemas"])
        for body in {str(each): each for each in found}.values():
            usual = await _usual_fields(emails, operation)
            content = written({**usual, **body} if isinstance(body, dict) else body, value)
            address, _ = next(addresses(path, operation, value))
            _check(operation, await _send(client, method, address, {}, content))
            sent += 1
    assert sent > 250
    assert _tables(database_url, schema) == tables
    assert [message.data async for message in emails.read("order-1", limit=3)] == [{"n": n} for n in range(3)]


def _usual_body(operation: Schema, description: Schema) -> bytes:
    return written(operation["requestBody"]["content"]["application/json"]["example"], "")


async def _usual_fields(mp: Milepost, operation: Schema) -> dict[str, Any]:
    """What has to be there for a hostile field to come far."""
    match operation["operationId"]:
        case "settle":
            await mp.append("task-1", NewMessage("a"))
            [task] = await mp.pull("tasks", limit=1)
            return {"retry": [task.token], "id": str(uuid4())}
        case "retry_deliveries" | "skip_deliveries":
            return {"all": True}
    return {}


async def _send(
    client: httpx.AsyncClient, method: str, address: str, headers: dict[str, bytes], content: bytes
) -> httpx.Response:
    given = {name.encode(): text for name, text in headers.items()}
    if content:
        given[b"content-type"] = b"application/json"
    async with asyncio.timeout(60):
        return await client.request(method, address, headers=given, content=content)


def _check(operation: Schema, answer: httpx.Response) -> None:
    """It is an answer that the description has, without anything of what was sent in its headers."""
    described = operation["responses"].keys() | ELSEWHERE
    assert str(answer.status_code) in described, (answer.request.url, answer.status_code, answer.text)
    assert answer.status_code not in (500, 502, 504)
    assert "set-cookie" not in answer.headers
    assert not any(part in text for text in answer.headers.values() for part in ("owned", "\r", "\n", "\0"))


def _tables(database_url: str, schema: str) -> list[str]:
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "select relname::text from pg_class where relnamespace = %s::regnamespace order by 1", [schema]
        )
        return [name for (name,) in found]
