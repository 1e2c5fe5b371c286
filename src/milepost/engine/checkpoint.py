"""How often progress is written."""

from dataclasses import dataclass

from milepost.engine.values import MOST, checked, seconds, whole
from milepost.suggestions import Suggesting


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Suggesting):
    """When a lane writes its progress: whichever comes first. A killed worker repeats at most that much.

    `seconds`: so long after the first message that is not written yet. Defaults to 0.2.
    `messages`: after so many. Defaults to 1,000.
    """

    seconds: float = 0.2
    messages: int = 1000

    def __post_init__(self) -> None:
        checked("Checkpoint: seconds", seconds(), self.seconds)
        checked("Checkpoint: messages", whole(1, MOST), self.messages)
