"""Server-sent events for pages that follow: the regions that have changed, each as HTML."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping

import msgspec

from milepost.console.regions import changed
from milepost.console.snapshot import Snapshot
from milepost.console.watch import Watch
from milepost.log.database import end
from milepost.server.events import comment, event
from milepost.server.problems import answer_to
from milepost.server.stopping import Stopping

LOOK = 3.0
"""Seconds between two looks at whether the reader may stay."""
BEAT = 5
"""So many looks without news, and a comment is sent."""
PAGES = 64
"""Different pages of which the regions are kept: whoever watches the same one is sent the same."""
RETRY = b"retry: 2000\n\n"
"""Milliseconds after which a browser that was cut off comes back."""
LIVE = event(b"{}", name="live")
"""What one sees is how it is."""

Draw = Callable[[Snapshot], Awaitable[Mapping[str, str]]]


class Live:
    """Draws the regions of pages again at each snapshot, once for all who watch the same page."""

    def __init__(self, watch: Watch, stopping: Stopping) -> None:
        self.watch = watch
        self._stopping = stopping
        self._drawn: OrderedDict[Hashable, tuple[int, Mapping[str, str] | None]] = OrderedDict()
        self._drawing = asyncio.Lock()

    async def pieces(
        self, key: Hashable, draw: Draw, may_stay: Callable[[], Awaitable[bool]], *, since: int
    ) -> AsyncGenerator[bytes, None]:
        """What one open page is sent, until the server stops or the reader may no longer read.

        It was drawn from the snapshot `since`: if that is still known, only what changes after it is sent.
        """
        yield RETRY
        before = self.known(key, since)
        number = 0 if before is None else since
        failure = self.watch.failure
        yield LIVE if failure is None else _problem(failure)
        stop = asyncio.create_task(self._stopping.wait())
        with self.watch.watching():
            try:
                silence = 0
                while True:
                    found = await self._next(number, failure, stop)
                    # Looked at last: who may no longer read is not sent what came meanwhile.
                    if not await may_stay():
                        break
                    if found is None:
                        silence += 1
                        if silence % BEAT == 0:
                            yield comment("still here")
                        continue
                    silence = 0
                    if isinstance(found, Exception):
                        failure = found
                        yield _problem(failure)
                        continue
                    number, failure = found.number, None
                    now = await self._regions(key, found, draw)
                    yield _event(before, now)
                    before = now
                yield event(b"{}", name="ended")
            except _Stopped:
                yield event(b"{}", name="away")
            except Exception as error:
                yield _problem(error)
            finally:
                await end(stop)

    async def _next(
        self, number: int, failure: Exception | None, stop: asyncio.Task[None]
    ) -> Snapshot | Exception | None:
        """The next snapshot, or what newly keeps anybody from looking; None if none comes for a while."""
        coming = asyncio.create_task(self.watch.after(number, failure))
        try:
            await asyncio.wait([coming, stop], timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                raise _Stopped
            if not coming.done():
                return None
            error = coming.exception()
            return error if isinstance(error, Exception) else coming.result()
        finally:
            await end(coming)

    async def _regions(self, key: Hashable, snapshot: Snapshot, draw: Draw) -> Mapping[str, str]:
        async with self._drawing:
            known = self.known(key, snapshot.number)
            if known is not None:
                return known
            drawn = await draw(snapshot)
            self.remember(key, snapshot, drawn)
            return drawn

    def known(self, key: Hashable, number: int) -> Mapping[str, str] | None:
        """The regions of a page, if they were drawn last from this snapshot."""
        of, drawn = self._drawn.get(key, (0, None))
        return drawn if of == number else None

    def remember(self, key: Hashable, snapshot: Snapshot, drawn: Mapping[str, str]) -> None:
        """Keeps the regions of a page for whoever asks for it next."""
        self._drawn[key] = (snapshot.number, drawn)
        self._drawn.move_to_end(key)
        if len(self._drawn) > PAGES:
            self._drawn.popitem(last=False)


class _Stopped(Exception):
    """The server is being stopped."""


def _event(before: Mapping[str, str] | None, now: Mapping[str, str]) -> bytes:
    """The regions that changed. One more or less makes it another page, which is then asked for as a whole."""
    if before is not None and before.keys() != now.keys():
        return event(b"{}", name="page")
    told = changed(before or {}, now)
    return event(msgspec.json.encode(told), name="regions") if told else LIVE


def _problem(error: Exception) -> bytes:
    return event(answer_to(error).body, name="problem")
