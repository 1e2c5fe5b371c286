"""The events that `@mp.on_event` listens to."""

from milepost.engine.events import (
    AttemptFailed,
    Created,
    DefinitionChanged,
    Event,
    Handled,
    LaneLost,
    LaneReleased,
    LaneTaken,
    MessageEvent,
    Parked,
    Recovered,
    RetryScheduled,
    Skipped,
    Stalled,
    Started,
    Stopped,
)

__all__ = [
    "AttemptFailed",
    "Created",
    "DefinitionChanged",
    "Event",
    "Handled",
    "LaneLost",
    "LaneReleased",
    "LaneTaken",
    "MessageEvent",
    "Parked",
    "Recovered",
    "RetryScheduled",
    "Skipped",
    "Stalled",
    "Started",
    "Stopped",
]
