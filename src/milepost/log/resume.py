"""Resume tokens of followers that come back, also when the log lost its newest commits meanwhile.

A position does not say whether the log is still the one that the follower saw: after a crash with asynchronous
commit, or a failover to a standby that lagged, other messages stand at the same positions. A resume token names
messages instead: the last one and a few before it. The newest of them that is still there is where to go on. What
drew its position was on disk, so nothing before it was lost. Any process can check that, whatever it knew before.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar
from zlib import crc32

from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.log.protocol import Fingerprint, Log

T = TypeVar("T")

logger = logging.getLogger("milepost.log.feed")

MAX_MARKS: Final = 32
"""Marks that a token may have; one that is made here has at most 23."""
MARK_SPACING_POSITIONS: Final = 4
"""Positions between the last message and the nearest mark before it, at least."""
DISTANCE_BITS: Final = 3
"""Bits of a distance for one mark: each is about 8 times as far back as the one after it."""
RESUME_OUTAGE_PAUSE_SECONDS: Final = 0.1
RESUME_TOKEN_PATTERN: Final = (
    rf"[0-9]{{1,19}}(-[0-9a-f]{{8}}(\.[0-9]{{1,19}}-[0-9a-f]{{8}}){{0,{MAX_MARKS - 1}}})?"
)
"""A position alone, or marks, the newest first."""
_TIME_ZERO: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""From here PostgreSQL counts microseconds."""
_RESUME_TOKEN: Final = re.compile(RESUME_TOKEN_PATTERN)


class ResumeMark(NamedTuple):
    """A message at a position, told from any other that may stand there later."""

    position: int
    checksum: int
    """Of the message's id and time: appended again, it has the same id and another time."""

    @classmethod
    def of_fingerprint(cls, fingerprint: Fingerprint) -> Self:
        """Return the mark of a message that the log was asked about."""
        microseconds = (fingerprint.time - _TIME_ZERO) // timedelta(microseconds=1)
        return cls.of(fingerprint.position, fingerprint.id.bytes, microseconds.to_bytes(8, "big", signed=True))

    @classmethod
    def of(cls, position: int, id: bytes, time: bytes) -> Self:
        """Return the mark of a message, given its id and time as PostgreSQL sends them."""
        return cls(position, crc32(time, crc32(id)))

    def __str__(self) -> str:
        return f"{self.position}-{self.checksum:08x}"


class ResumeTrail:
    """The marks of what a follower has seen: dense near the last message, ever sparser before it."""

    def __init__(self) -> None:
        self.marks: list[ResumeMark] = []
        self._older = ""

    @property
    def newest(self) -> int:
        """The position of the newest mark; 0 if there is none."""
        return self.marks[0].position if self.marks else 0

    def extend(self, marks: Iterable[ResumeMark]) -> None:
        """Add marks in any order."""
        self._keep(sorted({*self.marks, *marks}, reverse=True))

    def add_message(self, message: Message[Any]) -> str:
        """Return the token to resume after this message."""
        mark = ResumeMark.of(message.position, message._id, message._time)
        if self.marks and self.marks[0].position >= mark.position:
            # The log went back: what is marked from here on was lost.
            self._keep([older for older in self.marks if older.position < mark.position])
        token = f"{mark}{self._older}"
        if not self.marks or mark.position - self.marks[0].position >= MARK_SPACING_POSITIONS:
            self._keep([mark, *self.marks])
        return token

    def __str__(self) -> str:
        """The token to resume after the newest mark."""
        return self._older.removeprefix(".") or "0"

    def _keep(self, marks: Sequence[ResumeMark]) -> None:
        """Keep the newest mark, and the oldest of each distance: to 7 positions, to 63, to 511 and so on."""
        # Of marks at the same distance the later one in the list, which is the older one, counts.
        of_distance = {_distance_class(marks[0].position - mark.position): mark for mark in marks}
        self.marks = list(of_distance.values())
        self._older = "".join(f".{mark}" for mark in self.marks)


def _distance_class(distance: int) -> int:
    return -(-distance.bit_length() // DISTANCE_BITS)


def parse_resume_token(text: str, *, highest: int) -> int | list[ResumeMark]:
    """Return the marks of a token, or the position that it is; raise ValueError if it is neither.

    `highest` is the highest position that is accepted.
    """
    if _RESUME_TOKEN.fullmatch(text) is None:
        raise ValueError("not a resume token")
    marks = [part.partition("-") for part in text.split(".")]
    if any(int(position) > highest for position, _, _ in marks):
        raise ValueError("no position is that high")
    if not marks[0][1]:
        return int(text)
    return [ResumeMark(int(position), int(checksum, 16)) for position, _, checksum in marks]


class ResumeFinder:
    """Finds out where followers go on. Waits while the database is unavailable."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def surviving(self, marks: Sequence[ResumeMark]) -> list[ResumeMark]:
        """Return those marks whose messages are in the log."""
        found = await self._marks([mark.position for mark in marks])
        return list(set(marks).intersection(found))

    async def marks_up_to(self, position: int) -> list[ResumeMark]:
        """Return marks of the log up to a position."""
        distances = [0, *(1 << bits for bits in range(DISTANCE_BITS - 1, position.bit_length(), DISTANCE_BITS))]
        return await self._marks([position - distance for distance in distances], nearest=True)

    async def horizon(self) -> int:
        """Return the position up to which everything is final."""
        return (await _when_available(self._log.current_horizon)).position

    async def drawn(self) -> int:
        """Return the newest position that was given to an append."""
        look = partial(self._log.current_horizon, wait_for_short_appends=False)
        return (await _when_available(look)).drawn

    async def _marks(self, positions: list[int], *, nearest: bool = False) -> list[ResumeMark]:
        found = await _when_available(lambda: self._log.fingerprints(positions, nearest=nearest))
        return [ResumeMark.of_fingerprint(fingerprint) for fingerprint in found]


async def _when_available(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Unavailable as error:
            logger.debug("resuming waits: %s", error)
            await asyncio.sleep(RESUME_OUTAGE_PAUSE_SECONDS)
