"""The heartbeat of a worker, in a thread of its own: no handler can keep it from beating."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from milepost.concurrency import cancel_and_wait
from milepost.errors import Unavailable
from milepost.progress.protocol import LaneShare, LeaseHome, LeaseMembership, Leases

logger = logging.getLogger("milepost.engine")

LOOP_CHECK_SECONDS = 1.0
"""Seconds between two looks at whether the worker's loop goes on."""

R = TypeVar("R")


class Heartbeat:
    """A worker's part in the leases, from the beginning of a block to its end.

    Everything that is asked of the leases is asked on this thread's event loop, which also beats, three times a
    lease. So it does not matter to them what the worker's own loop is doing, as long as it does something: when
    a handler has blocked that for too long, the heart gives the lanes up. Then it ends the process, if `exits`;
    otherwise it beats again when the loop goes on.
    """

    def __init__(
        self,
        leases: Leases,
        worker: str,
        group: str,
        lease: float,
        home: LeaseHome,
        *,
        is_blocked: Callable[[], bool],
        exits: bool,
    ) -> None:
        self._is_blocked = is_blocked
        self._exits = exits
        self._leases = leases
        self._worker = worker
        self._group = group
        self._lease = lease
        self._home = home
        self._membership: LeaseMembership
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._live, name="milepost-heart", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        await asyncio.to_thread(self._begun.wait)
        try:
            await self._there(self._open())
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with suppress(Unavailable):
                await self._there(self._close())
        finally:
            await self._end()

    async def change_lease(self, lease: float) -> None:
        """The worker lives for so many seconds after each beat from now on, and beats as often as that needs."""
        await self._there(self._change_lease(lease))

    async def balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        """What to take and what to give."""
        return await self._there(self._membership.balance(wanted, held))

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        await self._there(self._membership.release(subscription, lanes))

    async def _there(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    # In the thread

    def _live(self) -> None:
        asyncio.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._stop.wait()

    async def _open(self) -> None:
        self._membership = await self._leases.admit(self._worker, self._group, self._lease, self._home)
        self._beating = asyncio.create_task(self._beat())

    async def _close(self) -> None:
        await cancel_and_wait(self._beating)
        await self._membership.close()

    async def _change_lease(self, lease: float) -> None:
        # The next beat may be due sooner: what waits for it begins anew.
        await cancel_and_wait(self._beating)
        try:
            await self._membership.change_lease(lease)
            self._lease = lease
        finally:
            self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        pause = beats = self._lease / 3
        while True:
            if await self._is_blocked_within(pause):
                await self._give_up()
                continue
            try:
                await self._membership.beat()
                pause = beats
            except Exception as error:  # whatever it is: a heart that stops has lost all lanes
                level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
                logger.log(level, "heartbeat delayed, trying again: %r", error)
                pause = min(LOOP_CHECK_SECONDS, beats)

    async def _is_blocked_within(self, seconds: float) -> bool:
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            await asyncio.sleep(min(LOOP_CHECK_SECONDS, left))
            if self._is_blocked():
                return True
        return False

    async def _give_up(self) -> None:
        logger.critical("a handler blocks the event loop, long after its time-out: other workers take over")
        if self._exits:
            with suppress(Exception):
                await asyncio.wait_for(self._membership.close(), self._lease)
            logging.shutdown()
            os._exit(1)
        # Without a beat the lease ends.
        await asyncio.sleep(LOOP_CHECK_SECONDS)
