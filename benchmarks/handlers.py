"""Programs whose handlers do nothing, in the shapes that a handler can have."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from benchmarks.logs import Log
from milepost import Message, Milepost, Transaction

BATCH = 500
"""The messages of a call that takes several."""

Declare = Callable[[Milepost], None]
"""Gives a program its subscriptions."""


def program(log: Log, declare: Declare) -> Milepost:
    """A program that nobody has run before: its subscriptions are new."""
    mp = Milepost(log.url, schema=log.schema, group=uuid4().hex)
    declare(mp)
    return mp


def one_a_call(mp: Milepost, name: str = "drain", **options: Any) -> None:
    """`async def`, one message a call."""

    @mp.subscription(name, **options)
    async def handle(message: Message[Any]) -> None:
        pass


def plain(mp: Milepost) -> None:
    """`def`, one message a call: each call goes through a thread."""

    @mp.subscription("drain")
    def handle(message: Message[Any]) -> None:
        pass


def batches(mp: Milepost) -> None:
    """Many messages a call."""

    @mp.subscription("drain", batch=BATCH)
    async def handle(messages: list[Message[Any]]) -> None:
        pass


def exactly_once(mp: Milepost) -> None:
    """One message a call, in the transaction of the progress, in 16 lanes side by side."""

    @mp.subscription("drain", lanes=16)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        pass


def exactly_once_batches(mp: Milepost) -> None:
    """Many messages a call, in the transaction of the progress, in 16 lanes side by side."""

    @mp.subscription("drain", batch=BATCH, lanes=16)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        pass


def exactly_once_in_one_lane(mp: Milepost) -> None:
    """One message a call, in the transaction of the progress, one after the other."""

    @mp.subscription("drain")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        pass


def exactly_once_batches_in_one_lane(mp: Milepost) -> None:
    """Many messages a call, in the transaction of the progress, one call after the other."""

    @mp.subscription("drain", batch=BATCH)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        pass
