"""The live tail over HTTP: server-sent events, from one node after the other, without gap or repetition.

Positions go back when the log loses its newest commits. By the id of the last event a server finds out where to
resume. What it sends again, because it cannot tell how much exactly was lost, is left out here.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import httpx

from milepost.client.backoff import Backoff
from milepost.client.messages import ReceivedMessage
from milepost.client.node import Node, path
from milepost.client.problems import error_of
from milepost.client.reading import Reading, Wanted
from milepost.client.requests import Request, Requests, decoded
from milepost.complaints import Complaints
from milepost.errors import TooLarge, Unavailable
from milepost.log.codec import Codec
from milepost.log.feed import Now
from milepost.log.message import Message
from milepost.log.reader import Page

PAGE: Final = 1000
"""Messages after which what has arrived is handed on."""
MAX_LINES: Final = 16
"""Lines of an event that are looked at: a server sends three."""
REMEMBERED_MESSAGES: Final = 10_000
"""How many of the last messages are recognized when they come again."""
_logger = logging.getLogger("milepost.client")


class Following:
    """Follows for a client."""

    def __init__(
        self, requests: Requests, reading: Reading, codec: Codec, *, patience: float, largest: int
    ) -> None:
        self._requests = requests
        self._reading = reading
        self._codec = codec
        self._patience = patience
        self._largest = largest

    async def pages(self, wanted: Wanted, after: int | Now) -> AsyncGenerator[Page, None]:
        """Messages for ever, in the lists they come in; from another node where one ends it."""
        # Asked before: whoever is cut off before the first message goes on there, and misses nothing.
        position = after if isinstance(after, int) else await self._reading.head()
        begin, handed_out = str(after) if isinstance(after, int) else "now", _HandedOut()
        complaints = Complaints(_logger, f"following {self._requests.nodes}")
        backoff, end = Backoff(), asyncio.get_running_loop().time() + self._patience
        while True:
            for node in self._requests.nodes.in_turn():
                try:
                    async with aclosing(self._from(node, wanted, begin)) as pages:
                        async for page, token in pages:
                            end = float("inf")
                            begin = token or str(page[-1].position if page else position)
                            if fresh := handed_out.add(page):
                                position = fresh[-1].position
                                backoff.reset()
                                yield fresh
                except Unavailable as error:
                    self._requests.nodes.fails(node)
                    problem = error
            wait = backoff.wait()
            if asyncio.get_running_loop().time() + wait > end:
                raise problem
            complaints.make(f"was cut off, and goes on after position {position}: {problem}")
            await asyncio.sleep(wait)

    async def _from(self, node: Node, wanted: Wanted, begin: str) -> AsyncGenerator[tuple[Page, str], None]:
        """What one node sends, and the token to resume after it; first an empty page, when it has begun."""
        request = Request(method="GET", path=path("follow"), query=[*wanted.query(), ("after", begin)])
        async with self._requests.opened(node, request, {"accept": "text/event-stream"}) as answer:
            if answer.status_code != 200:
                raise error_of(await self._requests.read(answer, node), answer.status_code, node)
            self._requests.nodes.works(node)
            yield [], begin if begin != "now" else ""
            async for events in self._events(answer):
                page = [self._message(event, node) for event in events if "data" in event]
                yield page, events[-1].get("id", b"").decode(errors="replace")
        raise Unavailable(f"{node} ended it")

    async def _events(self, answer: httpx.Response) -> AsyncIterator[list[dict[str, bytes]]]:
        """Events, as many at a time as have arrived together."""
        rest = bytearray()
        async for piece in answer.aiter_raw():
            looked = max(0, len(rest) - 1)
            rest += piece
            end = rest.rfind(b"\n\n", looked)
            if len(rest) - max(end, 0) > self._largest:
                raise TooLarge("event", f"the server sent more than {self._largest:,} bytes of one event")
            if end < 0:
                continue
            events = [
                event
                for event in map(_fields, bytes(rest[:end]).split(b"\n\n"))
                if "data" in event or "id" in event
            ]
            del rest[: end + 2]
            for start in range(0, len(events), PAGE):
                yield events[start : start + PAGE]

    def _message(self, event: dict[str, bytes], node: Node) -> Message[Any]:
        if event.get("event") == b"problem":
            raise error_of(event["data"], 200, node)
        return decoded(event["data"], ReceivedMessage).message(self._codec)


class _HandedOut:
    """The last messages that a follower was given."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED_MESSAGES)
        self._highest = 0

    def add(self, page: Page) -> Page:
        """Return the messages that were not handed out before, and remember them."""
        known: dict[int, bytes] | None = None
        fresh: Page = []
        for message in page:
            # Another message may stand at the same position now, and the same one appended again has another time.
            identity = message._id + message._time
            if message.position <= self._highest:
                known = dict(self._recent) if known is None else known
                if known.get(message.position) == identity:
                    continue
                known[message.position] = identity
            self._highest = max(self._highest, message.position)
            self._recent.append((message.position, identity))
            fresh.append(message)
        return fresh


def _fields(event: bytes) -> dict[str, bytes]:
    """The fields of an event; comments have none."""
    found: dict[str, bytes] = {}
    for line in event.split(b"\n", MAX_LINES)[:MAX_LINES]:
        name, _, value = line.partition(b":")
        if name:
            found[name.decode(errors="replace")] = value.removeprefix(b" ")
    return found
