"""The way of a lane through the log: under which definition it passed what."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from milepost.progress.tracing import StoredDefinition, has_passed


@dataclass(frozen=True)
class Era:
    """Definitions that order alike, so that each message stays in its lane."""

    definitions: Sequence[StoredDefinition]
    """The newest first."""

    @property
    def oldest(self) -> StoredDefinition:
        """The definition that it began with."""
        return self.definitions[-1]

    def passing(self, lane: int, position: int) -> StoredDefinition | None:
        """The definition by which a lane passed a position that it has passed; None: it had before."""
        return next((each for each in self.definitions if not has_passed(each.begins(lane), position)), None)


def eras(definitions: Sequence[StoredDefinition]) -> list[Era]:
    """Definitions, which come in order, by how they order; the newest first."""
    groups = [list(group) for _, group in groupby(definitions, lambda each: (each.orders, each.lanes))]
    return [Era(group[::-1]) for group in reversed(groups)]
