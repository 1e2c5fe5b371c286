"""A copy of a program on the schema of a test."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from copy import copy
from functools import cached_property, wraps
from typing import Any, TypeVar

from milepost.app import Milepost
from milepost.engine.consuming.desks import Desks
from milepost.engine.managed import ManagedSubscription
from milepost.engine.solitude import Solitude
from milepost.sync import SyncMilepost

C = TypeVar("C", bound=type)

_TAKEN_OVER = ("group", "concurrency", "pool_size", "max_message_bytes")


def opens_itself(cls: C) -> C:
    """Lets every public async method of the class beneath be called while nothing is open: it opens for the call.

    A test has no place of its own for `async with mp`, and its event loop may end before its fixtures do.
    """
    for name, method in vars(cls.__mro__[1]).items():
        if not name.startswith("_") and name not in vars(cls):
            if inspect.iscoroutinefunction(method):
                setattr(cls, name, _opening_coroutine(method))
            elif inspect.isasyncgenfunction(method):
                setattr(cls, name, _opening_generator(method))
    return cls


def _opening_coroutine(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with self.opened():
            return await method(self, *args, **kwargs)

    return call


def _opening_generator(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with self.opened(), aclosing(method(self, *args, **kwargs)) as values:
            async for value in values:
                yield value

    return call


@opens_itself
class BoundSubscription(ManagedSubscription):
    """What `manage` gives for a copy."""

    def __init__(self, milepost: "BoundMilepost", managed: ManagedSubscription) -> None:
        super().__init__(managed.group, managed.name, milepost._place)
        self._milepost = milepost

    def opened(self) -> AbstractAsyncContextManager[Milepost]:
        """Open from the beginning of the block to its end."""
        return self._milepost


@opens_itself
class BoundMilepost(Milepost):
    """A copy of a program that keeps everything, its progress too, in one schema, and opens by itself.

    Its blocking methods are those of a twin, so that a test can use both in whatever order.
    """

    def __init__(self, original: Milepost, *, url: str, schema: str, provide: Mapping[Any, Any]) -> None:
        options = {name: original.settings[name].value for name in _TAKEN_OVER}
        super().__init__(url, schema=schema, progress=url, migrate="off", **options)
        self._instruments += original._instruments
        self._codec.adopt(original._codec)
        self._subscriptions.adopt(original._subscriptions, provide)
        self._listeners.adopt(original._listeners)

    def opened(self) -> AbstractAsyncContextManager[Milepost]:
        """Open from the beginning of the block to its end."""
        return self

    def manage(self, address: str) -> ManagedSubscription:
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return BoundSubscription(self, super().manage(address))

    @cached_property
    def sync(self) -> SyncMilepost:
        """The same methods for code that is not async."""
        twin = copy(self)
        twin._log = twin._services = twin._loop = None
        twin._entered = 0
        twin._opening = asyncio.Lock()
        twin._solitude = Solitude()
        twin.desks = Desks(twin._place, twin._listeners)
        return SyncMilepost(twin)

    def end(self) -> None:
        """Closes what `sync` has opened."""
        if "sync" in vars(self):
            self.sync.close()
