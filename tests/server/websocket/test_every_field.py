"""Hostile input in every field of every frame: it is refused, or taken as what it is, and the server goes on."""

import asyncio
import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from engine.consuming.taking import orders
from milepost import Milepost, NewMessage
from milepost.server.websocket.frames import AnyClientFrame, HelloFrame
from server.hostile import HERE, values, written
from server.websocket.conftest import Serving
from server.websocket.talking import Frame, Talk, consuming, talking

ANSWERS = {"settled", "done", "pong", "welcome", "lost", "deliveries", "standby"}
"""What may come of a frame that was taken."""
ENDS = {1000, 1002, 1007, 1008, 1009, 4005}
"""How a conversation may end."""

USUAL: dict[str, Any] = {"id": 1, "routes": [{"where": "n < 0"}], "deliveries": [1], "seconds": 5}
"""What is in fields that a frame has to have."""


def frames(kind: type) -> Iterator[Frame]:
    """Frames of a type with `HERE` in each place."""
    config: Any = kind.__struct_config__  # type: ignore[attr-defined]
    for body in _structs(kind):
        yield {"type": config.tag, **body}
    yield {"type": HERE, **_needed(kind)}


def _structs(kind: type) -> Iterator[Frame]:
    """The fields of a struct, one of them hostile."""
    for field in msgspec.structs.fields(kind):
        for value in _values(field.type):
            yield {**_needed(kind), field.name: value}
    yield {**_needed(kind), HERE: 1}


def _values(type: Any) -> Iterator[Any]:
    """`HERE`, and in each place that the type has within."""
    yield HERE
    for part in _parts(type):
        if isinstance(part, msgspec.StructMeta):
            yield from _structs(part)
        elif get_origin(part) is list:
            yield from ([each] for each in _values(get_args(part)[0]))


def _parts(type: Any) -> list[Any]:
    """What a value may be."""
    if hasattr(type, "__metadata__"):
        return _parts(type.__origin__)
    if get_origin(type) in (Union, UnionType):
        return [part for each in get_args(type) for part in _parts(each)]
    return [type]


def _needed(kind: type) -> Frame:
    return {field.name: USUAL[field.name] for field in msgspec.structs.fields(kind) if field.required}


def test_every_frame_and_field_is_there() -> None:
    found = {kind.__struct_config__.tag: list(frames(kind)) for kind in get_args(AnyClientFrame)}
    assert found.keys() == {"hello", "configure", "settle", "extend", "drain", "ping", "leave"}
    places = [json.dumps(frame) for each in found.values() for frame in each]
    for place in (
        '{"type": "hello", "routes": [{"where": "@here@"}]}',
        '{"type": "hello", "open": ["@here@"]}',
        '{"type": "settle", "retry": [{"id": 1, "error": "@here@"}]}',
        '{"type": "settle", "ack": ["@here@"]}',
        '{"type": "extend", "deliveries": [1], "seconds": "@here@"}',
        '{"type": "leave", "ref": "@here@"}',
    ):
        assert place in places, places


@pytest.mark.shard("hostile", fast=["NUL"])
@pytest.mark.parametrize("value", values(fast=["NUL", "deep lists"]))
async def test_in_a_hello(mp: Milepost, server: Serving, value: str) -> None:
    async with asyncio.TaskGroup() as group:
        for frame in frames(HelloFrame):
            group.create_task(_is_borne(server, frame, value))
    await _is_served(mp, server)


@pytest.mark.shard("hostile", fast=["NUL"])
@pytest.mark.parametrize("value", values(fast=["NUL", "more than 64 bits"]))
async def test_in_any_other_frame(mp: Milepost, server: Serving, value: str) -> None:
    """From somebody who has a delivery, so that it comes as far as it can."""
    sent = [frame for kind in get_args(AnyClientFrame) if kind is not HelloFrame for frame in frames(kind)]
    await mp.append("order-1", [NewMessage("a", {"n": n}, properties={"n": n}) for n in range(len(sent))])
    async with asyncio.TaskGroup() as group:
        for frame in sent:
            group.create_task(_is_borne(server, frame, value, hello={"routes": [{"capacity": 1}]}))
    await _is_served(mp, server)


async def _is_borne(server: Serving, frame: Frame, value: str, *, hello: Frame | None = None) -> None:
    """A conversation with one hostile frame in it: what comes of it is an answer, a problem, or the end."""
    async with talking(server.address) as talk:
        try:
            if hello is not None:
                await talk.hello(**hello)
                await talk.take(1)
            await talk.connection.send(written(frame, value), text=True)
            await talk.say("ping", ref="after it")
            await _goes_on(talk)
        except ConnectionClosed:
            assert talk.connection.close_code in ENDS, (frame, talk.connection.close_code)


async def _goes_on(talk: Talk) -> None:
    while True:
        heard = await talk.hear()
        if heard["type"] == "problem":
            assert heard["problem"]["status"] < 500, heard
        elif heard["type"] == "pong" and heard["ref"] == "after it":
            return
        else:
            assert heard["type"] in ANSWERS | {"end"}, heard


async def _is_served(mp: Milepost, server: Serving) -> None:
    """What was settled is stored, and somebody else gets what is there."""
    async with consuming(server.address, routes=[{"priority": 9, "where": "n >= 1000"}]) as talk:
        await orders(mp, 3, first=1000)
        found = await talk.take(3)
        await talk.say("settle", ref=1, ack=[each["id"] for each in found])
        await talk.expect("settled", ref=1, refused=[])
    assert (await mp.manage("shipping").info()).stalled is None
