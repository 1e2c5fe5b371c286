"""How often a message is tried, and how long it waits in between."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from milepost.suggestions import Suggesting

MOST: Final = 2**31 - 1
"""The most attempts that can be counted."""
_LONGEST: Final = 100 * 366 * 86_400
"""A hundred years, in seconds, which every clock can add."""
_BOUNDS: Final = {"delay": (0, _LONGEST), "factor": (1, 1_000_000), "max_delay": (0, _LONGEST), "jitter": (0, 1)}


@dataclass(frozen=True, kw_only=True)
class Retry(Suggesting):
    """What follows a failed attempt.

    `attempts`: how many there are before the message is parked, the first included. Defaults to 11.
    `delay`: seconds before the second attempt. Defaults to 5.
    `factor`: how much longer each following wait is. Defaults to 2.
    `max_delay`: the longest wait, in seconds, before jitter. Defaults to 240.
    `jitter`: the share by which a wait is longer or shorter at random, so that what failed together does not
    come back together. Defaults to 0.1.
    `rules`: other policies for exceptions of some classes, the closest class first: `{ValueError: Retry.never}`.
    """

    never: ClassVar["Retry"]
    """Parks at the first failure."""

    attempts: int = 11
    delay: float = 5
    factor: float = 2
    max_delay: float = 240
    jitter: float = 0.1
    rules: Mapping[type[BaseException], "Retry"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= MOST:
            raise ValueError(f"attempts counts the first one too: from 1 to {MOST:,}, not {self.attempts!r}")
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            # Written so that NaN is refused as well.
            if type(value) not in (int, float) or not least <= value <= most:
                raise ValueError(f"{name} is a number from {least} to {most:,}, not {value!r}")
        if not isinstance(self.rules, Mapping) or not all(map(_is_rule, self.rules.items())):
            raise ValueError(
                f"rules has a Retry for classes of exceptions, {{ValueError: Retry.never}}, not {self.rules!r}"
            )

    def policy_for(self, cause: type[BaseException] | None) -> "Retry":
        """The policy for attempts that failed with such an exception."""
        for class_ in cause.__mro__ if cause and self.rules else ():
            if class_ in self.rules:
                return self.rules[class_]
        return self

    def wait(self, attempts: int, random: Callable[[], float]) -> float | None:
        """How long to wait after so many attempts, in seconds; None: no further one.

        `random` gives numbers from 0 up to 1.
        """
        if attempts >= self.attempts:
            return None
        return self._plain_wait(attempts) * (1 + self.jitter * (2 * random() - 1))

    def _plain_wait(self, attempts: int) -> float:
        try:
            return min(self.max_delay, self.delay * float(self.factor) ** max(0, attempts - 1))
        except OverflowError:
            return self.max_delay


def _is_rule(rule: tuple[object, object]) -> bool:
    cause, policy = rule
    return isinstance(cause, type) and issubclass(cause, BaseException) and isinstance(policy, Retry)


Retry.never = Retry(attempts=1)
