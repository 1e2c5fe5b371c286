"""What one schedule starts from: the subscription's options, and the definitions that follow."""

from dataclasses import dataclass, field, replace
from typing import Literal

from milepost.dispatch.retry import Retry
from milepost.dispatch.settings import Settings

OnPark = Literal["block", "continue"]
DELAY = 4.0
JITTER = 0.25
CAUSES: tuple[type[BaseException] | None, ...] = (None, KeyError, ValueError, OSError)
"""KeyError has a rule that parks at once, ValueError one with an attempt more and a short wait."""


@dataclass(frozen=True)
class Setup:
    """The options of a schedule; `strategy` is None for handlers in the worker itself."""

    lanes: int = 1
    keys: int = 5
    ordered: bool = True
    strategy: str | None = None
    on_park: OnPark = "block"
    window: int = 10
    window_bytes: int = 10_000
    timeout: float | None = None
    track_all: bool = False
    probation: int = 20
    stall_after: int = 1000
    max_waiting: int = 1000
    max_unrouted: int = 1000
    attempts: int = 3
    killed: bool = True
    """Whether the drain at the end begins with dead workers, or with lanes that were released."""
    kept: bool = False
    """Whether it goes on with the workers that there are instead."""
    lossy: bool = False
    """Whether the store may go back to an earlier state."""

    def definition(self) -> "Definition":
        """The first definition."""
        return Definition(setup=self, on_park=self.on_park, window=self.window, attempts=self.attempts)


@dataclass(frozen=True)
class Definition:
    """What a program declares: which messages it rejects, and options that may differ from the last time."""

    setup: Setup
    on_park: OnPark
    window: int
    attempts: int
    number: int = 0
    rejected: frozenset[int] = frozenset()
    settings: Settings = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", self._settings())

    def changed(self, rejected: frozenset[int], on_park: OnPark, window: int, attempts: int) -> "Definition":
        """The next definition."""
        number = self.number + 1
        return replace(self, number=number, rejected=rejected, on_park=on_park, window=window, attempts=attempts)

    def _settings(self) -> Settings:
        setup = self.setup
        rules: dict[type[BaseException], Retry] = {
            KeyError: Retry.never,
            ValueError: Retry(attempts=self.attempts + 1, delay=1, factor=1, jitter=JITTER),
        }
        return Settings(
            window=self.window,
            window_bytes=setup.window_bytes,
            ordered=setup.ordered,
            on_park=self.on_park,
            retry=Retry(attempts=self.attempts, delay=DELAY, max_delay=20, jitter=JITTER, rules=rules),
            timeout=setup.timeout,
            track_all=setup.track_all,
            probation=setup.probation,
            stall_after=setup.stall_after,
            max_waiting=setup.max_waiting,
            max_unrouted=setup.max_unrouted,
        )


def limit_of(settings: Settings, cause: type[BaseException] | None) -> int:
    """How many attempts there are before a message is parked."""
    if cause is KeyError:
        return 1
    return settings.retry.attempts + 1 if cause is ValueError else settings.retry.attempts


def waits_of(settings: Settings, cause: type[BaseException] | None, attempts: int) -> tuple[float, float]:
    """The shortest and the longest wait after so many attempts."""
    wait = 1.0 if cause is ValueError else min(20.0, settings.retry.delay * 2.0 ** (attempts - 1))
    return wait * (1 - JITTER), wait * (1 + JITTER)
