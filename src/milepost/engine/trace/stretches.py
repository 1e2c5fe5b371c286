"""The way of a lane through the log: under which definition it passed what."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from milepost.dispatch import Cursor
from milepost.progress.tracing import KEPT, TAKES, StoredDefinition, Take, has_passed

NEW = 1
"""The revision that a lane is made with."""
FIRST = 2
"""The revision of a lane that is taken for the first time."""


@dataclass(frozen=True)
class Stretch:
    """A part of the way that went by one definition."""

    definition: StoredDefinition
    begins: Cursor
    """Where the lane was when it began: what it had passed by then was not passed in it."""
    certain: bool
    """Whether that is all: else something may have been settled ahead of it."""


@dataclass(frozen=True)
class Era:
    """Definitions that order alike, so that each message stays in its lane."""

    definitions: Sequence[StoredDefinition]
    """The newest first."""
    until: datetime | None
    """When the next one began."""
    is_first: bool

    @property
    def oldest(self) -> StoredDefinition:
        """The definition that it began with."""
        return self.definitions[-1]

    def stretches(self, lane: int, takes: Sequence[Take], now: datetime) -> Iterator[Stretch]:
        """The way of a lane, the newest part first: where it was each time that it was taken, as far as that is
        known, and before that where it was when definitions were declared."""
        of_era = [take for take in takes if self._has(take.at)]
        kept_since = now - KEPT if len(takes) < TAKES else now
        for take in of_era:
            yield Stretch(self._definition_at(take.at), take.cursor, certain=True)
        for definition in self.definitions:
            if not of_era or _is_before(definition, of_era[-1], kept_since):
                yield Stretch(definition, self._begins(definition, lane), certain=False)

    def passing(self, lane: int, takes: Sequence[Take], position: int, now: datetime) -> Stretch | None:
        """The part in which a lane passed a position that it has passed; None: it had before."""
        way = self.stretches(lane, takes, now)
        return next((stretch for stretch in way if not has_passed(stretch.begins, position)), None)

    def _has(self, time: datetime) -> bool:
        return time >= self.oldest.since and (self.until is None or time < self.until)

    def _definition_at(self, time: datetime) -> StoredDefinition:
        return next(definition for definition in self.definitions if definition.since <= time)

    def _begins(self, definition: StoredDefinition, lane: int) -> Cursor:
        # With another order, or other lanes, all begin where the lowest of those before was.
        is_other = definition is self.oldest and not self.is_first
        return Cursor(min(definition.positions) if is_other else definition.positions[lane])


def _is_before(definition: StoredDefinition, earliest: Take, since: datetime) -> bool:
    """Whether a lane may have passed something by a definition before the earliest time known that it was taken.

    It has to be taken for that after the definition was declared, and all such times are known since then.
    """
    is_first = earliest.revision == FIRST or definition.since > since
    return definition.since <= earliest.at and not is_first


def eras(definitions: Sequence[StoredDefinition]) -> list[Era]:
    """Definitions, which come in order, by how they order; the newest first."""
    found: list[Era] = []
    until: datetime | None = None
    groups = [list(group) for _, group in groupby(definitions, lambda each: (each.orders, each.lanes))]
    for group in reversed(groups):
        found.append(Era(group[::-1], until, is_first=group is groups[0]))
        until = group[0].since
    return found
