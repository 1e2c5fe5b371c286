"""What a read asks for (streams, categories, types, time, lanes, a filter), where it begins, and the pages that
answer it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

import msgspec

from milepost.concurrency import cancel_and_wait
from milepost.errors import InvalidMessage, TooLarge
from milepost.log.codec import check_name, check_stream
from milepost.log.message import Message
from milepost.names import MAX_POSITION_NUMBER, category_hash, category_of

PAGE_MESSAGES = 1000
PAGE_BYTES = 8 * 2**20
FIRST_SPAN_POSITIONS = 10_000
"""How many positions the first statement of a read looks at."""
MAX_SPAN_POSITIONS = 100_000
"""The most that one looks at where no index narrows the read."""


Page = list[Message[Any]]


class Since(msgspec.Struct, frozen=True):
    """Older messages are not wanted, but for those up to a position, where nobody asks."""

    time: datetime
    above: int = 0
    """The time says something of higher positions only."""

    def wants(self, message: Message[Any]) -> bool:
        """Whether a message is new enough, or below."""
        return message.time >= self.time or message.position <= self.above


MAX_CHOICES = 1000
"""The most categories, streams or types that one selection may name."""
MAX_PATTERN_CHARACTERS = 10_000
"""The longest expression that all patterns of one selection together may make."""


@dataclass(frozen=True)
class Selection:
    """Several of a kind mean any of them; different kinds mean all of them; nothing means everything."""

    categories: frozenset[str] | None = None
    streams: frozenset[str] | None = None
    types: "TypePatterns | None" = None

    @classmethod
    def of(
        cls,
        *,
        category: str | Sequence[str] | None = None,
        stream: str | Sequence[str] | None = None,
        types: str | Sequence[str] | None = None,
    ) -> "Selection":
        """The selection that a user's words mean; what cannot be meant is refused."""
        categories = _chosen_names("category", category)
        streams = _chosen_names("stream", stream)
        for name in streams or ():
            check_stream(name)
        chosen = _chosen_names("types", types)
        return cls(categories, streams, None if chosen is None else TypePatterns.of(chosen))

    @property
    def everything(self) -> bool:
        """Whether no message is left out."""
        return self.categories is None and self.streams is None and self.types is None

    def matches(self, message: Message[Any]) -> bool:
        """Whether this message is wanted."""
        return (
            (self.streams is None or message.stream in self.streams)
            and (self.categories is None or message.category in self.categories)
            and (self.types is None or self.types.match(message.type))
        )


@dataclass(frozen=True)
class TypePatterns:
    """Exact types, and patterns in which `*` is one dotted part and `>` is the rest."""

    exact: frozenset[str]
    pattern: str | None

    @classmethod
    def of(cls, types: frozenset[str]) -> "TypePatterns":
        """Sorts exact names from patterns."""
        patterns = sorted(name for name in types if {"*", ">"} & set(name))
        expressions = [_pattern_expression(pattern) for pattern in patterns]
        whole = f"^(?:{'|'.join(expressions)})$" if expressions else None
        if whole is not None and len(whole) > MAX_PATTERN_CHARACTERS:
            raise TooLarge(
                "types",
                f"the patterns make {len(whole):,} characters, over the limit of {MAX_PATTERN_CHARACTERS:,}",
            )
        return cls(types - frozenset(patterns), whole)

    def match(self, name: str) -> bool:
        """Whether a type is one of these."""
        if name in self.exact:
            return True
        return self.pattern is not None and re.fullmatch(self.pattern, name, re.DOTALL) is not None


def _pattern_expression(pattern: str) -> str:
    # Read by PostgreSQL and by Python alike: literals, one class and one repetition.
    parts = pattern.split(".")
    if any(len(part) > 1 and {"*", ">"} & set(part) for part in parts):
        raise InvalidMessage("types", f"{pattern!r}: * and > stand for whole parts between dots")
    if ">" in parts[:-1]:
        raise InvalidMessage("types", f"{pattern!r}: > is the rest and stands at the end only")
    spelled = {"*": "[^.]+", ">": ".+"}
    return r"\.".join(spelled.get(part) or _escaped_part(part) for part in parts)


def _escaped_part(part: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "\\" + c for c in part)


def _chosen_names(field: str, given: str | Sequence[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    if not isinstance(given, Iterable):
        raise InvalidMessage(field, f"a string or a list of strings is wanted, not {given!r}")
    chosen = frozenset([given] if isinstance(given, str) else given)
    if not chosen:
        raise InvalidMessage(field, "an empty list selects nothing: leave it out to select everything")
    if len(chosen) > MAX_CHOICES:
        raise TooLarge(field, f"{len(chosen):,} of them, over the limit of {MAX_CHOICES:,}")
    for name in chosen:
        check_name(field, name)
    return chosen


MESSAGE_OVERHEAD_BYTES = 1000
"""What a message takes in memory beside its content."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The messages between two positions: above `low`, up to `high`."""

    low: int
    high: int
    messages: Page
    life: UUID | None = None
    """The life of the server in which it was read; None: that does not matter to who reads it."""

    def up_to(self, position: int | None) -> "Segment":
        """What of it is not beyond a position, if there is one."""
        if position is None or self.high <= position:
            return self
        return replace(self, high=position, messages=[each for each in self.messages if each.position <= position])

    def beginning(self, max_weight: int) -> "Segment":
        """Return its first messages, up to the one that brings their weight to `max_weight`; all if none does."""
        taken = 0
        for count, message in enumerate(self.messages, 1):
            taken += message.size + MESSAGE_OVERHEAD_BYTES
            if taken >= max_weight:
                return replace(self, high=message.position, messages=self.messages[:count])
        return self

    @property
    def weight(self) -> int:
        """Roughly how many bytes it takes in memory."""
        return page_memory_bytes(self.messages)


def page_memory_bytes(page: Page) -> int:
    """Roughly how many bytes a page takes in memory."""
    return sum(message.size + MESSAGE_OVERHEAD_BYTES for message in page) + MESSAGE_OVERHEAD_BYTES


_REQUIRED_BOUNDS = ("after", "after_version")
"""What a read always begins after."""


_DIRECTIONS: dict[bool, LiteralString] = {False: "asc", True: "desc"}


@dataclass(frozen=True)
class PropertyCondition:
    """What a filter implies of a message's properties: a jsonpath predicate and the values it names."""

    path: str
    values: dict[str, int | str | bool]


@dataclass(frozen=True)
class SelectedLanes:
    """Some of the shares into which streams are divided: those whose bucket modulo `of` is one of `numbers`."""

    of: int
    numbers: frozenset[int]


@dataclass(frozen=True)
class Query:
    """What one read is after, but for where it begins and ends."""

    selection: Selection = field(default_factory=Selection)
    since: Since | None = None
    condition: PropertyCondition | None = None
    filter: Callable[[Mapping[str, object]], bool] | None = None
    backwards: bool = False
    lanes: SelectedLanes | None = None
    """Only messages of these; for pages, `accepts` does not look at it."""
    page: int = PAGE_MESSAGES
    """The most messages of a page."""
    page_bytes: int = PAGE_BYTES
    """A page ends with the message that brings its content to this size, so it has at least one."""

    def accepts(self, message: Message[Any]) -> bool:
        """Whether a message that was read without conditions is wanted."""
        return (
            self.selection.matches(message)
            and (self.since is None or self.since.wants(message))
            and (self.filter is None or self.filter(message.properties))
        )

    def filtered(self, page: Page, limit: int | None) -> Page:
        """What of a page is wanted after all: the index over categories has hashes, and a filter is exact here."""
        if self.filter is None and self._is_of_categories(page):
            return page
        return [message for message in page if self.accepts(message)][:limit]

    def _is_of_categories(self, page: Page) -> bool:
        categories = self.selection.categories
        return categories is None or categories.issuperset(map(category_of, {message.stream for message in page}))

    def page_size(self, limit: int | None) -> int:
        """How many messages to ask for when `limit` are still wanted."""
        return self.page if limit is None or self.filter is not None else min(self.page, limit)

    def cuts(self, page: Page, limit: int) -> bool:
        """Return True if there may be more within the range of a page that had at most `limit` messages."""
        return is_page_full(page, limit, self.page_bytes)

    @property
    def ends_by_sizes(self) -> bool:
        """Whether sizes say where a page ends: it has all of the log, of categories or of lanes, in order."""
        return not (self.has_conditions or self.backwards or self.selection.streams is not None)

    @property
    def has_conditions(self) -> bool:
        """Whether messages are looked at before they are read, other than for what an index or a number says."""
        return bool(self.selection.types is not None or self.since or self.condition)

    @property
    def spans(self) -> tuple[int, int]:
        """How many positions one statement looks at, at first and at the most."""
        selection = self.selection
        indexed = selection.categories is not None or selection.streams is not None
        drops_nothing = not (self.has_conditions or self.lanes)
        return FIRST_SPAN_POSITIONS, MAX_POSITION_NUMBER if indexed or drops_nothing else MAX_SPAN_POSITIONS

    @property
    def direction(self) -> LiteralString:
        """The order of the page."""
        return _DIRECTIONS[self.backwards]

    def parameters(self) -> dict[str, Any]:
        """The conditions, and the size of a page, as parameters of a statement."""
        selection, types = self.selection, self.selection.types
        condition, lanes = self.condition, self.lanes
        return {
            "hashes": sorted({category_hash(name) for name in selection.categories or ()}),
            "streams": sorted(selection.streams or ()),
            "any_type": types is None,
            "types": sorted(types.exact) if types else [],
            "type_pattern": types.pattern if types else None,
            "since": self.since.time if self.since else None,
            "since_above": self.since.above if self.since else 0,
            "lanes": [number in lanes.numbers for number in range(lanes.of)] if lanes else None,
            "where": condition.path if condition else None,
            "where_values": msgspec.json.encode(condition.values).decode() if condition else "{}",
            "bytes": self.page_bytes,
        }


async def fetch_ahead(pages: AsyncGenerator[Page, None]) -> AsyncGenerator[Page, None]:
    """The same pages, the next of which is fetched while one is worked on."""
    fetching = asyncio.create_task(_next_page(pages))
    try:
        while (page := await fetching) is not None:
            fetching = asyncio.create_task(_next_page(pages))
            # It is on its way before the page is worked on.
            await asyncio.sleep(0)
            yield page
    finally:
        await cancel_and_wait(fetching)
        await pages.aclose()


async def _next_page(pages: AsyncGenerator[Page, None]) -> Page | None:
    return await anext(pages, None)


def check_number(name: str, number: object) -> None:
    """Refuse what is no whole number from 0 on, under the name that it was given by."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_POSITION_NUMBER:
        raise InvalidMessage(name, f"a whole number from 0 on is wanted, not {number!r}")


def check_read_bounds(stream: object, *, since: datetime | None, **numbers: int | None) -> None:
    """Refuses what a read cannot begin or end with: `numbers` are its options of these names."""
    for name, number in numbers.items():
        if number is not None or name in _REQUIRED_BOUNDS:
            check_number(name, number)
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidMessage("since", "a datetime with a time zone is wanted")
    if isinstance(stream, str) and numbers["before"] is not None:
        raise InvalidMessage("before", "it is for reading across streams: before_version is for one")
    if not isinstance(stream, str) and (numbers["after_version"] or numbers["before_version"] is not None):
        raise InvalidMessage("stream", "after_version and before_version are for reading one stream")


def is_page_full(page: Page, limit: int, max_bytes: int) -> bool:
    """Whether there may be more within the range of a page: it is full in messages or in bytes."""
    return len(page) >= limit or sum(message.size for message in page) >= max_bytes


class Now:
    """Where a follower begins that wants new messages only."""

    def __repr__(self) -> str:
        return "NOW"


NOW: Final = Now()
"""`after=NOW`: only what is not there yet when the following begins."""


def check_follow_start(after: int | Now) -> None:
    """Refuse what a follower cannot begin after."""
    if not isinstance(after, Now):
        check_number("after", after)
