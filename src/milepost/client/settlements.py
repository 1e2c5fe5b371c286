"""What a consumer has said of its deliveries and the server has not answered yet."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from milepost.client.frames import Because, Id, Settled
from milepost.engine.consuming.statistics import How

if TYPE_CHECKING:
    from milepost.client.delivery import Delivery

AT_ONCE: Final = 1000
"""Settlements of one frame."""
FRAME_BYTES: Final = 500_000
"""What they may say together; a server takes frames of a MiB."""
LONGEST_ERROR: Final = 8192
"""Characters of an error that are sent, which is what is kept of it."""


@dataclass(eq=False)
class Settlement:
    """How one delivery is to end, or that it takes longer."""

    delivery: "Delivery"
    how: How | Literal["back"] | None
    """None: it is extended. "back": nobody has begun with it."""
    words: dict[str, Any] = field(default_factory=dict)
    answer: "asyncio.Future[str | None] | None" = None
    """Why it was refused, if it was; nobody may wait for that."""

    @property
    def size(self) -> int:
        """How much of a frame it takes, at the most."""
        return 100 + 6 * sum(len(word) for word in self.words.values() if isinstance(word, str))

    def resolve(self, refusal: str | None) -> None:
        """The server has answered, or never will."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(refusal)


class Settlements:
    """Those that are to be sent, those that were sent, and those of a connection that broke before the answer."""

    def __init__(self) -> None:
        self._waiting: list[Settlement] = []
        self._sent: dict[int, list[Settlement]] = {}
        self._unsure: list[Settlement] = []
        self._refs = 0

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sent or self._unsure)

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._waiting)

    def add(self, settlement: Settlement) -> None:
        """One more to be sent."""
        self._waiting.append(settlement)

    def frames(self) -> Iterator[dict[str, Any]]:
        """What is to be sent, as frames of a bounded size; it counts as sent."""
        while self._waiting:
            batch = self._next_batch()
            self._refs += 1
            self._sent[self._refs] = batch
            yield _frame(batch, self._refs)

    def _next_batch(self) -> list[Settlement]:
        """The first ones that go together: extending is a frame of its own, for one time."""
        first, size, count = self._waiting[0], 0, 0
        for each in self._waiting:
            if count and (_kind(each) != _kind(first) or count == AT_ONCE or size + each.size > FRAME_BYTES):
                break
            size, count = size + each.size, count + 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def answered(self, answer: Settled) -> list[tuple[Settlement, str | None]]:
        """What became of each in the frame that is answered: why it was refused, or None."""
        batch = self._sent.pop(answer.ref, []) if isinstance(answer.ref, int) else []
        refused = {each.id: each.reason for each in answer.refused}
        moved = set(answer.moved)
        return [
            (each, None if each.delivery.id in moved else refused.get(each.delivery.id, "is no longer known"))
            for each in batch
        ]

    def failed(self, ref: object) -> list[Settlement]:
        """A frame had no effect."""
        return self._sent.pop(ref, []) if isinstance(ref, int) else []

    def cut(self) -> None:
        """The connection broke: of what was sent nobody knows."""
        self._unsure += [each for batch in self._sent.values() for each in batch]
        self._sent.clear()

    def resumed(self, still_open: set[Id]) -> None:
        """What the server still has open it has not been told: it is sent again."""
        again = [each for each in self._unsure if each.delivery.id in still_open]
        self._unsure = [each for each in self._unsure if each.delivery.id not in still_open]
        self._waiting = again + self._waiting

    def sure(self) -> list[Settlement]:
        """The server has told all that it took away meanwhile: what is left was settled by what was sent."""
        sure, self._unsure = self._unsure, []
        return sure

    def taken_away(self, lost: Sequence[Because]) -> list[tuple[Settlement, str]]:
        """Those of deliveries that are lost; they are forgotten."""
        reasons = {each.id: each.reason for each in lost}
        found = [each for each in (*self._waiting, *self._unsure) if each.delivery.id in reasons]
        self._waiting = [each for each in self._waiting if each.delivery.id not in reasons]
        self._unsure = [each for each in self._unsure if each.delivery.id not in reasons]
        return [(each, reasons[each.delivery.id]) for each in found]

    def all(self) -> list[Settlement]:
        """Everything that is not answered, which never will be; it is forgotten."""
        self.cut()
        found, self._waiting, self._unsure = [*self._unsure, *self._waiting], [], []
        return found


def _kind(settlement: Settlement) -> object:
    return settlement.words.get("seconds") if settlement.how is None else "settle"


def _frame(batch: Sequence[Settlement], ref: int) -> dict[str, Any]:
    if batch[0].how is None:
        ids = [each.delivery.id for each in batch]
        return {"type": "extend", "ref": ref, "deliveries": ids, "seconds": batch[0].words["seconds"]}
    frame: dict[str, Any] = {"type": "settle", "ref": ref}
    for each in batch:
        of_kind = frame.setdefault(str(each.how), [])
        of_kind.append(each.delivery.id if each.how in ("ack", "back") else {"id": each.delivery.id, **each.words})
    return frame
