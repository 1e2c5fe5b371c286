"""What an owner did that its writes may rely on."""

from dataclasses import dataclass

from milepost.dispatch.delivery import DeliveryRow, State
from milepost.dispatch.exchange import RowCounts
from milepost.dispatch.settings import Settings


@dataclass(frozen=True, slots=True)
class Fate:
    """What the store is to say of a message that was settled other than by an ack.

    `options` are pairs of counted attempts and whether it is parked: there is more than one only when a person
    started the count anew while it ran.
    """

    options: tuple[tuple[int, bool], ...]
    failed_at: float
    due: tuple[float, float]
    ended: bool = False
    """Whether it only ended with a release: then it may also be left as it was."""
    blamed: bool = False
    """Whether its process vanished while it ran alone."""

    @property
    def parked(self) -> bool:
        """Whether it is parked, for certain."""
        return all(parked for _, parked in self.options)

    @property
    def may_be_parked(self) -> bool:
        """Whether it is parked as far as its owner knows, or may be."""
        return any(parked for _, parked in self.options)

    def agrees(self, row: DeliveryRow) -> bool:
        """Whether a row says so."""
        if (row.attempts, row.state is State.PARKED) not in self.options:
            return False
        if row.state is State.PARKED:
            return row.due is None
        return row.state is State.RETRYING and row.due is not None and self._is_time(row.due)

    def _is_time(self, due: float) -> bool:
        return due >= self.failed_at and self.due[0] - 1e-6 <= due <= self.due[1] + 1e-6


@dataclass(frozen=True, slots=True)
class Evidence:
    """A copy of what an owner knew when it made an exchange."""

    settings: Settings
    acked: frozenset[int]
    committing: frozenset[int]
    rejected: frozenset[int]
    fates: dict[int, Fate]
    counts: RowCounts
    """Rows of all lanes, as the owner was told last."""
    outcomes: tuple[bool | None, ...]
    """How attempts ended that are not written yet: well, badly, or without counting."""
    reach: int
    ranges: int
    """How many ranges were ahead of the cursor when the owner took the lane."""
