"""Live pages: the regions that follow what happens, and the server-sent events that bring changed ones."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping

import msgspec
from markupsafe import Markup, escape

from milepost.concurrency import cancel_and_wait
from milepost.console.poller import OverviewPoller
from milepost.console.snapshot import OverviewSnapshot
from milepost.server.http.sse import sse_comment, sse_event
from milepost.server.problems import problem_response
from milepost.server.shutdown import Shutdown

_TIMES = re.compile(r"(<time[^>]*>)[^<]*")


class LiveRegions:
    """The live regions of a page: `live` in a template. Regions of the same page and snapshot are drawn once."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.drawn: dict[str, str] = {}
        self._known = known or {}

    def __call__(self, id: str, *, tag: str = "div", caller: Callable[[], Markup], **attributes: str) -> Markup:
        """A region of the page with an id of its own; `class_` and others become attributes of its tag."""
        html = self._known.get(id)
        if html is None:
            html = str(caller())
        self.drawn[id] = html
        others = "".join(
            f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items()
        )
        # The tag and the names of attributes are a template's, the content was drawn by one.
        return Markup(f'<{tag} id="{escape(id)}" data-live{others}>{html}</{tag}>')  # noqa: S704


def changed_regions(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the regions that changed. Times that went on are no change: a script keeps them true."""
    return {
        name: html for name, html in now.items() if _without_times(before.get(name, "")) != _without_times(html)
    }


def _without_times(html: str) -> str:
    return _TIMES.sub(r"\1", html)


STAY_CHECK_SECONDS = 3.0
"""Seconds between two checks that the reader may stay."""
CHECKS_BEFORE_KEEP_ALIVE = 5
"""Checks without news after which a comment is sent."""
MAX_REMEMBERED_PAGES = 64
"""Pages of which the regions are kept: all readers of one page are sent the same."""
RETRY_FIELD = b"retry: 2000\n\n"
"""Milliseconds after which a browser that was cut off comes back."""
LIVE_EVENT = sse_event(b"{}", name="live")
"""The event that says that the page shows the current state."""

DrawRegions = Callable[[OverviewSnapshot], Awaitable[Mapping[str, str]]]


class LivePages:
    """The open pages that follow: at each snapshot the regions of a page are drawn once for all its readers."""

    def __init__(self, poller: OverviewPoller, stopping: Shutdown) -> None:
        self.poller = poller
        self._stopping = stopping
        self._drawn: OrderedDict[Hashable, tuple[int, Mapping[str, str] | None]] = OrderedDict()
        self._drawing = asyncio.Lock()

    async def pieces(
        self, key: Hashable, draw: DrawRegions, may_stay: Callable[[], Awaitable[bool]], *, since: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of one open page, until the server stops or the reader may no longer read.

        It was drawn from the snapshot `since`: if that is still known, only what changes after it is sent.
        """
        yield RETRY_FIELD
        before = self.known(key, since)
        number = 0 if before is None else since
        failure = self.poller.failure
        yield LIVE_EVENT if failure is None else _problem_event(failure)
        stop = asyncio.create_task(self._stopping.wait())
        with self.poller.watching():
            try:
                silence = 0
                while True:
                    found = await self._next(number, failure, stop)
                    # Looked at last: who may no longer read is not sent what came meanwhile.
                    if not await may_stay():
                        break
                    if found is None:
                        silence += 1
                        if silence % CHECKS_BEFORE_KEEP_ALIVE == 0:
                            yield sse_comment("still here")
                        continue
                    silence = 0
                    if isinstance(found, Exception):
                        failure = found
                        yield _problem_event(failure)
                        continue
                    number, failure = found.number, None
                    now = await self._regions(key, found, draw)
                    yield _regions_event(before, now)
                    before = now
                yield sse_event(b"{}", name="ended")
            except _ServerStopping:
                yield sse_event(b"{}", name="away")
            except Exception as error:
                yield _problem_event(error)
            finally:
                await cancel_and_wait(stop)

    async def _next(
        self, number: int, failure: Exception | None, stop: asyncio.Task[None]
    ) -> OverviewSnapshot | Exception | None:
        """Return the next snapshot, or a new failure to take one; None if neither comes for a while."""
        coming = asyncio.create_task(self.poller.after(number, failure))
        try:
            await asyncio.wait([coming, stop], timeout=STAY_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                raise _ServerStopping
            if not coming.done():
                return None
            error = coming.exception()
            return error if isinstance(error, Exception) else coming.result()
        finally:
            await cancel_and_wait(coming)

    async def _regions(self, key: Hashable, snapshot: OverviewSnapshot, draw: DrawRegions) -> Mapping[str, str]:
        async with self._drawing:
            known = self.known(key, snapshot.number)
            if known is not None:
                return known
            drawn = await draw(snapshot)
            self.remember(key, snapshot, drawn)
            return drawn

    def known(self, key: Hashable, number: int) -> Mapping[str, str] | None:
        """Return the regions of a page, if they were drawn last from this snapshot."""
        of, drawn = self._drawn.get(key, (0, None))
        return drawn if of == number else None

    def remember(self, key: Hashable, snapshot: OverviewSnapshot, drawn: Mapping[str, str]) -> None:
        """Keep the regions of a page for its next reader."""
        self._drawn[key] = (snapshot.number, drawn)
        self._drawn.move_to_end(key)
        if len(self._drawn) > MAX_REMEMBERED_PAGES:
            self._drawn.popitem(last=False)


class _ServerStopping(Exception):
    """The server is being stopped."""


def _regions_event(before: Mapping[str, str] | None, now: Mapping[str, str]) -> bytes:
    """Return the event of the regions that changed. With another set of regions the page is loaded anew."""
    if before is not None and before.keys() != now.keys():
        return sse_event(b"{}", name="page")
    told = changed_regions(before or {}, now)
    return sse_event(msgspec.json.encode(told), name="regions") if told else LIVE_EVENT


def _problem_event(error: Exception) -> bytes:
    return sse_event(problem_response(error).body, name="problem")
