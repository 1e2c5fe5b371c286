"""A filter tried on the newest messages, while somebody types it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from milepost.app import Milepost
from milepost.console.choice import Choice
from milepost.console.explained import Explained
from milepost.console.stretch import Search
from milepost.filter import Filter
from milepost.log.message import Message

MESSAGES = 100
"""How many it is tried on."""
SECONDS = 0.5
"""After which it is tried on those that were found."""


@dataclass(frozen=True)
class Sample:
    """What a filter makes of some messages."""

    count: int
    matches: int
    newest: Message[Any]
    explained: Explained
    """What it makes of the newest."""
    missing: Sequence[str]
    """The properties that it looks at and none of them has."""


async def sample_of(mp: Milepost, choice: Choice, filter: Filter) -> Sample | None:
    """Tries a filter on the newest messages of what is chosen besides; None if there are none."""
    stretch = await Search(mp, choice.unfiltered, most=MESSAGES, seconds=SECONDS).backwards()
    messages = stretch.messages
    if not messages:
        return None
    known = {name for message in messages for name in message.properties}
    return Sample(
        len(messages),
        sum(filter.matches(message.properties) for message in messages),
        messages[0],
        Explained.of(filter, messages[0].properties),
        sorted(filter.names - known),
    )
