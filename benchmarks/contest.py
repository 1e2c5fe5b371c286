"""Contenders that take turns: what the machine does meanwhile meets all of them alike."""

from collections.abc import Callable, Iterable, Mapping
from statistics import median

from benchmarks.bench import Bench
from benchmarks.results import Result

Turn = Callable[[], float]


class Scores:
    """What each contender reached in each round."""

    def __init__(self, *, unit: str = "messages/s", fewer_is_better: bool = False) -> None:
        self._rounds: dict[str, list[float]] = {}
        self._unit = unit
        self._fewer_is_better = fewer_is_better

    def add(self, contender: str, value: float) -> None:
        """One more round of a contender."""
        self._rounds.setdefault(contender, []).append(value)

    def result(
        self,
        work: str,
        subject: str,
        *,
        of: str | None = None,
        contender: str | None = None,
        at_least: float | None = None,
        below: float | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> Result:
        """The middle round of a contender, which is the subject unless told otherwise."""
        name = contender or subject
        return Result(
            work=work,
            subject=subject,
            value=median(self._rounds[name]),
            unit=self._unit,
            of=of,
            ratio=None if of is None else self._ratio(name, of),
            at_least=at_least,
            below=below,
            versions=versions or {},
        )

    def _ratio(self, contender: str, other: str) -> float:
        # The middle of the rounds' ratios, not the ratio of the middles: a slow round is slow for both.
        pairs = list(zip(self._rounds[contender], self._rounds[other], strict=True))
        if self._fewer_is_better:
            return median(another / one for one, another in pairs)
        return median(one / another for one, another in pairs)


def contest(
    bench: Bench,
    what: str,
    turns: Mapping[str, Turn],
    rounds: int,
    *,
    unit: str = "messages/s",
    fewer_is_better: bool = False,
) -> Scores:
    """Gives every contender its turn, round after round."""
    scores = Scores(unit=unit, fewer_is_better=fewer_is_better)
    with bench.steps(what, rounds * len(turns)) as step:
        for number in range(rounds):
            for contender in in_turn(turns, number):
                scores.add(contender, turns[contender]())
                step()
    return scores


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The order of a round: there and back, so that a machine that slows down slows everybody alike.

    Each second round begins with the next one, so that nobody always comes after itself.
    """
    forwards = list(names)
    first = number // 2 % len(forwards)
    forwards = forwards[first:] + forwards[:first]
    return forwards if number % 2 == 0 else forwards[::-1]
