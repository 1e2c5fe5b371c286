"""Reads over HTTP: page by page, to where the log, or the stream, ended when the read began."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from milepost.client.messages import MessagePage
from milepost.client.node import path
from milepost.client.problems import TookTooLong
from milepost.client.requests import Query, Request, Requests
from milepost.errors import MilepostError
from milepost.filter import compile_filter
from milepost.log.codec import Codec, check_stream
from milepost.log.message import Message
from milepost.log.reader import END, Page, check_bounds
from milepost.log.selection import Selection
from milepost.names import category_of

PAGE: Final = 1000
"""Messages of one answer at the most."""

Names = str | Sequence[str]


class Position(msgspec.Struct, frozen=True):
    """A place in the log."""

    position: int


class Version(msgspec.Struct, frozen=True):
    """Of a stream's last message."""

    version: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What somebody wants to read, checked as the library does."""

    stream: Names | None
    category: Names | None
    types: Names | None
    where: str | None
    since: datetime | None = None

    def __post_init__(self) -> None:
        Selection.of(category=self.category, stream=self.stream, types=self.types)
        if self.where is not None:
            compile_filter(self.where)

    @property
    def has_none(self) -> bool:
        """Whether no message can be wanted: the one stream is of another category."""
        if not isinstance(self.stream, str) or self.category is None:
            return False
        return category_of(self.stream) not in _listed(self.category)

    def query(self, *, named_in_path: bool = False) -> list[tuple[str, str]]:
        """As parameters of a request."""
        kinds = [("types", self.types)]
        if not named_in_path:
            kinds += [("stream", self.stream), ("category", self.category)]
        found = [(kind, name) for kind, names in kinds for name in _listed(names)]
        found += [("where", self.where)] if self.where is not None else []
        return found + ([("since", self.since.isoformat())] if self.since is not None else [])


class Reading:
    """Reads for a client."""

    def __init__(self, requests: Requests, codec: Codec) -> None:
        self._requests = requests
        self._codec = codec

    async def head(self) -> int:
        """The horizon."""
        answer = await self._requests.ask(Request(method="GET", path=path("head")))
        return answer.as_(Position).position

    async def last(self, stream: str) -> int:
        """The version of a stream's last message."""
        check_stream(stream)
        answer = await self._requests.ask(Request(method="GET", path=path("streams", stream, "last")))
        return answer.as_(Version).version

    async def pages(
        self,
        wanted: Wanted,
        *,
        after: int,
        after_version: int,
        before: int | None,
        before_version: int | None,
        backwards: bool,
        limit: int | None,
    ) -> AsyncGenerator[Page, None]:
        """Messages in the lists they come in."""
        check_bounds(
            wanted.stream,
            limit=limit,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=wanted.since,
        )
        if wanted.has_none or limit == 0:
            return
        paging = _Paging.of(wanted, backwards, after, after_version, before, before_version)
        left = END if limit is None else limit
        while left > 0:
            page = await self._page(paging, min(left, PAGE))
            if page is None:
                continue
            messages = [paging.counted(received.message(self._codec)) for received in page.messages]
            messages = [message for message in messages if paging.is_within(message)]
            if messages:
                yield messages
            left -= len(messages)
            if not page.more or len(messages) < len(page.messages):
                return
            if paging.end is None and not backwards:
                # Somebody who appends all the time must not keep it from ending.
                paging.end = await (self.last(paging.stream) if paging.stream is not None else self.head())

    async def _page(self, paging: "_Paging", limit: int) -> MessagePage | None:
        """The next page; None: nothing was found yet, and the next look goes on further."""
        query = [*paging.query(), ("limit", str(limit))]
        try:
            answer = await self._requests.ask(Request(method="GET", path=paging.path, query=query))
        except TookTooLong as error:
            if error.next is None or not paging.goes_on(error.next):
                raise
            return None
        page = answer.as_(MessagePage)
        if len(page.messages) > limit:
            raise MilepostError(
                f"the server answered {len(page.messages):,} messages where {limit:,} were asked for"
            )
        return page


class _Paging:
    """Where a read is: by version in one stream, else by position."""

    def __init__(self, wanted: Wanted, backwards: bool) -> None:
        self.stream = wanted.stream if isinstance(wanted.stream, str) else None
        self.path = path("messages") if self.stream is None else path("streams", self.stream)
        self._conditions = wanted.query(named_in_path=self.stream is not None)
        self._backwards = backwards
        self._bounds: dict[str, int] = {}
        self.end: int | None = None
        """The last place that is read; None: it is not known yet."""

    @classmethod
    def of(
        cls,
        wanted: Wanted,
        backwards: bool,
        after: int,
        after_version: int,
        before: int | None,
        before_version: int | None,
    ) -> "_Paging":
        """At the beginning."""
        paging = cls(wanted, backwards)
        bounds = {
            "after": after or None,
            "after_version": after_version or None,
            "before": before,
            "before_version": before_version,
        }
        paging._bounds = {name: number for name, number in bounds.items() if number is not None}
        return paging

    def query(self) -> Query:
        bounds = [(name, str(number)) for name, number in self._bounds.items()]
        backwards = [("backwards", "true")] if self._backwards else []
        return [*self._conditions, *bounds, *backwards]

    def counted(self, message: Message[Any]) -> Message[Any]:
        """The next page comes after this message."""
        self._bounds[self._bound] = self._place(message)
        return message

    def goes_on(self, place: int) -> bool:
        """The next page comes after this place; False if it is not further than the last."""
        before = self._bounds.get(self._bound, END if self._backwards else 0)
        self._bounds[self._bound] = place
        return place < before if self._backwards else place > before

    @property
    def _bound(self) -> str:
        word = "before" if self._backwards else "after"
        return word if self.stream is None else f"{word}_version"

    def is_within(self, message: Message[Any]) -> bool:
        return self.end is None or self._place(message) <= self.end

    def _place(self, message: Message[Any]) -> int:
        return message.position if self.stream is None else message.version


def _listed(names: Names | None) -> Sequence[str]:
    if names is None:
        return ()
    return [names] if isinstance(names, str) else names
