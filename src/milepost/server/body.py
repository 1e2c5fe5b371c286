"""The body of a request as it arrives: bounded in size, in time, and in what all bodies take together."""

import asyncio

from milepost.server.asgi import Event, Receive, Scope, header
from milepost.server.limits import Limits
from milepost.server.problems import NOT_JSON, TOO_LARGE, TOO_MANY, TOO_SLOW, Refused

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
"""What pages send."""


class Bodies:
    """How much of all bodies is in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bytes = 0

    def add(self, size: int) -> None:
        """More of one has arrived."""
        self._bytes += size

    def remove(self, size: int) -> None:
        """One is over."""
        self._bytes -= size

    @property
    def are_too_many(self) -> bool:
        """Whether together they are more than the server bears."""
        return self._bytes > self.limits.bodies_bytes


class Body:
    """Receives a body for whoever reads it. Use it as a block: at its end the body is forgotten."""

    def __init__(self, scope: Scope, receive: Receive, bodies: Bodies, kind: str = JSON) -> None:
        self._receive = receive
        self._bodies = bodies
        self._limits = bodies.limits
        self._size = 0
        self._is_complete = False
        self._deadline: float | None = None
        self._check(scope, kind)

    def _check(self, scope: Scope, wanted: str) -> None:
        """Refuses what can be seen to be wrong before any of it is read."""
        length = header(scope, b"content-length")
        if length is not None and (not length.isascii() or not length.isdigit()):
            length = None
        if length is not None and int(length) > self._limits.body_bytes:
            raise self._too_large()
        if length in (None, "0") and header(scope, b"transfer-encoding") is None:
            return
        kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if kind != wanted:
            raise Refused(
                NOT_JSON, f"The body has the type {kind or 'of nothing'!r}: send a header `content-type: {wanted}`"
            )
        if (header(scope, b"content-encoding") or "identity").lower() != "identity":
            raise Refused(NOT_JSON, "The body is compressed: send it as it is")

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *error: object) -> None:
        self._bodies.remove(self._size)

    async def receive(self) -> Event:
        """The next event of the request."""
        if self._is_complete:
            return await self._receive()
        event = await self._next()
        self._size += len(event.get("body", b""))
        self._bodies.add(len(event.get("body", b"")))
        self._is_complete = event["type"] != "http.request" or not event.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise self._too_large()
        if self._bodies.are_too_many:
            raise Refused(TOO_MANY, "Too many large requests are arriving at once: send it again in a moment")
        return event

    async def _next(self) -> Event:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            raise Refused(
                TOO_SLOW, f"The body did not arrive within {self._limits.body_seconds:g} seconds"
            ) from None

    def _too_large(self) -> Refused:
        return Refused(
            TOO_LARGE,
            f"The body has more than {self._limits.body_bytes:,} bytes: append fewer messages at once",
            field="body",
        )
