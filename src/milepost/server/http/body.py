"""The body of a request: bounded in size, time and memory, and worked on in turns with other large ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import TypeAlias

from milepost.server.http.asgi import Event, Receive, Scope, header
from milepost.server.limits import Limits
from milepost.server.problems import INVALID, NOT_JSON, TOO_LARGE, TOO_MANY, TOO_SLOW, RequestRefused

UNQUEUED_WORK_BYTES = 64 * 2**10
"""What is larger than this waits until nothing else that is as large is worked on."""
WORK_STEP_SECONDS = 0.01
"""After how long others have a turn."""

YieldStep: TypeAlias = Callable[[], Awaitable[None]]
"""To be awaited between two parts of the work."""


class WorkTurns:
    """One large body after the other: side by side, they would make each turn as long as all of theirs."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[YieldStep]:
        """Yield the step for work on so many bytes; first wait until other work on as much is done."""
        if size <= UNQUEUED_WORK_BYTES:
            yield _new_step()
            return
        async with self.alone() as step:
            yield step

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[YieldStep]:
        """Yield the step for work that takes long; first wait until no other such work is under way."""
        async with self._lock:
            yield _new_step()


def _new_step() -> YieldStep:
    since = monotonic()

    async def step() -> None:
        nonlocal since
        if monotonic() - since > WORK_STEP_SECONDS:
            await asyncio.sleep(0)
            since = monotonic()

    return step


JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"
"""What pages send."""
EMPTY_BYTES = len("{}")
"""The length of JSON that says nothing, which some programs send always."""
BODY_SCOPE_KEY = "milepost.body"
"""Where the scope of a request has its `RequestBody`."""


class BodyMemory:
    """How much of several bodies is in memory, and how much may be."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[RequestBody, int] = {}
        """Bytes of each that has any, the one first that has been there for longest."""
        self._bytes = 0

    def add(self, body: "RequestBody", size: int) -> None:
        """More of one has arrived."""
        if size:
            self._sizes[body] = self._sizes.get(body, 0) + size
            self._bytes += size

    def remove(self, body: "RequestBody") -> None:
        """One is over."""
        self._bytes -= self._sizes.pop(body, 0)

    @property
    def is_over_budget(self) -> bool:
        """Whether together they are more than that."""
        return self._bytes > self._max_bytes


class StrangersBodies(BodyMemory):
    """Bodies of clients that have not logged in.

    If they are too many, those give way that have been arriving for longest: slow ones keep no quick one out.
    """

    def add(self, body: "RequestBody", size: int) -> None:
        super().add(body, size)
        # A complete body is being answered, and ends soon by itself.
        arriving = (each for each in list(self._sizes) if not each.is_complete)
        while self.is_over_budget and (longest := next(arriving, None)) is not None:
            self.remove(longest)
            longest.give_way()


class BodyBudgets:
    """What bodies may take together: those of strangers have a budget of their own."""

    def __init__(self, limits: Limits, turns: WorkTurns) -> None:
        self.limits = limits
        self.turns = turns
        self.bodies = BodyMemory(limits.bodies_bytes)
        self.strangers = StrangersBodies(limits.strangers_bytes)


class RequestBody:
    """Receives a body for whoever reads it. Use it as a block: at its end the body is forgotten."""

    def __init__(self, scope: Scope, receive: Receive, budgets: BodyBudgets, kind: str = JSON_TYPE) -> None:
        self._receive = receive
        self._budgets = budgets
        self._bodies = budgets.bodies
        self._limits = budgets.limits
        self._max_bytes = self._limits.form_bytes if kind == FORM_TYPE else self._limits.body_bytes
        self._length = 0
        self._is_chunked = header(scope, b"transfer-encoding") is not None
        self._size = 0
        self.is_complete = False
        """Whether all of it has arrived."""
        self._has_given_way = False
        self._seconds = self._limits.body_seconds
        self._waiting: asyncio.Timeout | None = None
        self._deadline: float | None = None
        self._check(scope, kind)

    def _check(self, scope: Scope, wanted: str) -> None:
        """Refuses what can be seen to be wrong before any of it is read."""
        length = header(scope, b"content-length")
        if length is not None and (not length.isascii() or not length.isdigit()):
            length = None
        # Python refuses to convert a number of thousands of digits.
        self._length = int(length[:20]) if length is not None else 0
        if self._length > self._max_bytes:
            raise self._too_large()
        if length in (None, "0") and not self._is_chunked:
            return
        kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if kind != wanted:
            raise RequestRefused(
                NOT_JSON, f"The body has the type {kind or 'of nothing'!r}: send a header `content-type: {wanted}`"
            )
        if (header(scope, b"content-encoding") or "identity").lower() != "identity":
            raise RequestRefused(NOT_JSON, "The body is compressed: send it as it is")

    def apply_stranger_limits(self) -> None:
        """Allow only what somebody may send who has not shown who they are."""
        self._bodies = self._budgets.strangers
        # A few who take their time could else hold all that strangers have.
        self._seconds = min(self._seconds, self._limits.head_seconds)
        self._allow(self._limits.stranger_bytes)

    def apply_small_limit(self) -> None:
        """Allow only as much as is needed for what has no messages in it."""
        self._allow(self._limits.request_bytes)

    def _allow(self, max_bytes: int) -> None:
        self._max_bytes = min(self._max_bytes, max_bytes)
        if self._length > self._max_bytes:
            raise self._too_large()

    @property
    def has_content(self) -> bool:
        """Return True if there is a body that is not empty, by what the head of the request says."""
        return self._is_chunked or self._length > EMPTY_BYTES

    @property
    def limits(self) -> Limits:
        """How much it may have."""
        return self._limits

    def work_turn(self) -> AbstractAsyncContextManager[YieldStep]:
        """Enter this block for work on the whole body, and await the step that it gives between two parts."""
        return self._budgets.turns.of(self._size)

    def __enter__(self) -> "RequestBody":
        return self

    def __exit__(self, *error: object) -> None:
        self._bodies.remove(self)

    async def receive(self) -> Event:
        """The next event of the request."""
        if self.is_complete:
            return await self._receive()
        event = await self._next()
        if event["type"] != "http.request":
            # Nobody hears it; the framework would take it for a fault of the server.
            raise RequestRefused(INVALID, "The body broke off", field="body")
        size = len(event.get("body", b""))
        self._size += size
        self.is_complete = not event.get("more_body", False)
        if self._size > self._max_bytes:
            raise self._too_large()
        self._bodies.add(self, size)
        if self._has_given_way or self._bodies.is_over_budget:
            raise _too_many()
        return event

    def give_way(self) -> None:
        """Refuse this body, of which not all has arrived, so that others can be received."""
        self._has_given_way = True
        self._deadline = asyncio.get_running_loop().time()
        # One whose time is up already ends by itself.
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._deadline)

    async def _next(self) -> Event:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline) as self._waiting:
                return await self._receive()
        except TimeoutError:
            if self._has_given_way:
                raise _too_many() from None
            raise RequestRefused(TOO_SLOW, f"The body did not arrive within {self._seconds:g} seconds") from None
        finally:
            self._waiting = None

    def _too_large(self) -> RequestRefused:
        return RequestRefused(
            TOO_LARGE,
            f"The body has more than {self._max_bytes:,} bytes: send less at once",
            field="body",
        )


def _too_many() -> RequestRefused:
    return RequestRefused(TOO_MANY, "Too many large requests are arriving at once: send it again in a moment")
