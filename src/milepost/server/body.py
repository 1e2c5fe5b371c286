"""The body of a request as it arrives: bounded in size, in time, and in what all bodies take together."""

import asyncio
from contextlib import AbstractAsyncContextManager

from milepost.server.asgi import Event, Receive, Scope, header
from milepost.server.limits import Limits
from milepost.server.problems import INVALID, NOT_JSON, TOO_LARGE, TOO_MANY, TOO_SLOW, Refused
from milepost.server.turns import Step, Turns

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
"""What pages send."""
EMPTY_BYTES = len("{}")
"""The length of JSON that says nothing, which some programs send always."""
BODY = "milepost.body"
"""Where the scope of a request has its `Body`."""


class Bodies:
    """How much of several bodies is in memory, and how much may be."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[Body, int] = {}
        """Bytes of each that has any, the one first that has been there for longest."""
        self._bytes = 0

    def add(self, body: "Body", size: int) -> None:
        """More of one has arrived."""
        if size:
            self._sizes[body] = self._sizes.get(body, 0) + size
            self._bytes += size

    def remove(self, body: "Body") -> None:
        """One is over."""
        self._bytes -= self._sizes.pop(body, 0)

    @property
    def are_too_many(self) -> bool:
        """Whether together they are more than that."""
        return self._bytes > self._max_bytes


class StrangersBodies(Bodies):
    """Bodies of clients that have not logged in.

    If they are too many, those give way that have been arriving for longest: slow ones keep no quick one out.
    """

    def add(self, body: "Body", size: int) -> None:
        super().add(body, size)
        # A complete body is being answered, and ends soon by itself.
        arriving = (each for each in list(self._sizes) if not each.is_complete)
        while self.are_too_many and (longest := next(arriving, None)) is not None:
            self.remove(longest)
            longest.give_way()


class Budgets:
    """What bodies may take together: those of strangers have a budget of their own."""

    def __init__(self, limits: Limits, turns: Turns) -> None:
        self.limits = limits
        self.turns = turns
        self.bodies = Bodies(limits.bodies_bytes)
        self.strangers = StrangersBodies(limits.strangers_bytes)


class Body:
    """Receives a body for whoever reads it. Use it as a block: at its end the body is forgotten."""

    def __init__(self, scope: Scope, receive: Receive, budgets: Budgets, kind: str = JSON) -> None:
        self._receive = receive
        self._budgets = budgets
        self._bodies = budgets.bodies
        self._limits = budgets.limits
        self._max_bytes = self._limits.form_bytes if kind == FORM else self._limits.body_bytes
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
            raise Refused(
                NOT_JSON, f"The body has the type {kind or 'of nothing'!r}: send a header `content-type: {wanted}`"
            )
        if (header(scope, b"content-encoding") or "identity").lower() != "identity":
            raise Refused(NOT_JSON, "The body is compressed: send it as it is")

    def comes_from_stranger(self) -> None:
        """Allow only what somebody may send who has not shown who they are."""
        self._bodies = self._budgets.strangers
        # A few who take their time could else hold all that strangers have.
        self._seconds = min(self._seconds, self._limits.head_seconds)
        self._allow(self._limits.stranger_bytes)

    def is_small(self) -> None:
        """Allow only as much as is needed for what has no messages in it."""
        self._allow(self._limits.request_bytes)

    def _allow(self, max_bytes: int) -> None:
        self._max_bytes = min(self._max_bytes, max_bytes)
        if self._length > self._max_bytes:
            raise self._too_large()

    @property
    def says_something(self) -> bool:
        """Return True if there is a body that is not empty, by what the head of the request says."""
        return self._is_chunked or self._length > EMPTY_BYTES

    @property
    def limits(self) -> Limits:
        """How much it may have."""
        return self._limits

    def worked_on(self) -> AbstractAsyncContextManager[Step]:
        """Enter this block for work on the whole body, and await the step that it gives between two parts."""
        return self._budgets.turns.of(self._size)

    def __enter__(self) -> "Body":
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
            raise Refused(INVALID, "The body broke off", field="body")
        size = len(event.get("body", b""))
        self._size += size
        self.is_complete = not event.get("more_body", False)
        if self._size > self._max_bytes:
            raise self._too_large()
        self._bodies.add(self, size)
        if self._has_given_way or self._bodies.are_too_many:
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
            raise Refused(TOO_SLOW, f"The body did not arrive within {self._seconds:g} seconds") from None
        finally:
            self._waiting = None

    def _too_large(self) -> Refused:
        return Refused(
            TOO_LARGE,
            f"The body has more than {self._max_bytes:,} bytes: send less at once",
            field="body",
        )


def _too_many() -> Refused:
    return Refused(TOO_MANY, "Too many large requests are arriving at once: send it again in a moment")
