"""What every work is given: a server, how much to do, and a way to say how far it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import Progress

Step = Callable[[], None]
"""Tells that one part of the announced whole is done."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much a run does. More rounds and longer ones are less at the mercy of the machine."""

    rounds: int
    """How often each contender of a work has its turn."""
    seconds: float
    """How long one turn of writing lasts."""
    read_messages: int
    """The length of the log that is read."""
    follow_messages: int
    """How many messages a latency is taken from."""
    follow_rounds: int
    growth_rounds: int
    growth_seconds: float
    growth_streams: int
    """How many streams exist instead of 1,000."""
    growth_history: int
    """How many messages exist instead of nearly none."""
    growth_read_messages: int
    growth_follow_messages: int
    drain_rounds: int
    drain_messages: int
    """How many messages are drained, of `drain_streams` streams."""
    drain_streams: int
    team_messages: int
    """The backlog for one process and for two."""
    team_rounds: int
    memory_messages: int
    serve_rounds: int
    serve_versions: int
    """The backlog for consumers over a WebSocket: so many messages for each of a thousand streams."""
    serve_consumers: int
    """How many of them are idle when memory is looked at."""
    peer_share: float
    """How much of its usual number of messages each peer drains."""
    peer_rounds: int
    peer_live_messages: int


FULL = Sizes(
    rounds=5,
    seconds=3.0,
    read_messages=200_000,
    follow_messages=2_000,
    follow_rounds=3,
    growth_rounds=4,
    growth_seconds=1.5,
    growth_streams=1_000_000,
    growth_history=1_000_000,
    growth_read_messages=50_000,
    growth_follow_messages=400,
    drain_rounds=5,
    drain_messages=50_000,
    drain_streams=5_000,
    team_messages=200_000,
    team_rounds=5,
    memory_messages=1_000_000,
    serve_rounds=3,
    serve_versions=50,
    serve_consumers=1_000,
    peer_share=1.0,
    peer_rounds=3,
    peer_live_messages=1_000,
)
QUICK = Sizes(
    rounds=2,
    seconds=0.5,
    read_messages=20_000,
    follow_messages=200,
    follow_rounds=1,
    growth_rounds=1,
    growth_seconds=0.4,
    growth_streams=20_000,
    growth_history=20_000,
    growth_read_messages=10_000,
    growth_follow_messages=100,
    drain_rounds=1,
    drain_messages=10_000,
    drain_streams=1_000,
    team_messages=20_000,
    team_rounds=1,
    memory_messages=50_000,
    serve_rounds=1,
    serve_versions=5,
    serve_consumers=100,
    peer_share=0.1,
    peer_rounds=1,
    peer_live_messages=100,
)


@dataclass(frozen=True)
class Bench:
    """One run."""

    url: str
    sizes: Sizes
    progress: Progress

    @contextmanager
    def steps(self, what: str, total: int) -> Iterator[Step]:
        """Shows a bar for `total` steps.

        It is drawn only between steps: a display that draws by itself would take part in the measurement.
        """
        task = self.progress.add_task(what, total=total)
        self.progress.refresh()

        def step() -> None:
            self.progress.advance(task)
            self.progress.refresh()

        yield step
        self.progress.update(task, completed=total)
        self.progress.refresh()
