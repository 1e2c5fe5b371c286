"""Which deliveries a caller's words mean."""

from collections.abc import Iterable, Iterator
from typing import Any

from milepost.dispatch import State
from milepost.log.codec import check_text
from milepost.progress.deliveries import LAST, Choice, Decision, Named
from milepost.suggestions import suggestion

States = str | Iterable[str]
Positions = int | Iterable[int]


def listed(*, state: States | None, key: str | None, reason: str | None, after: int, up_to: int | None) -> Choice:
    """What is to be listed or counted."""
    states = frozenset(State) if state is None else _states(state, frozenset(State), "there is")
    _check_texts(key=key, reason=reason)
    return Choice(
        states=states, key=key, reason=reason, after=_number("after", after), up_to=_last("up_to", up_to)
    )


def meant(
    decision: Decision,
    positions: Positions | None,
    *,
    all: bool,
    after: int,
    up_to: int | None,
    state: States | None,
    key: str | None,
    reason: str | None,
) -> Choice | Named:
    """What is to be decided about: positions, or all, or all up to one; exactly one of them."""
    name = decision.name.lower()
    given = [word for word, is_given in _given(positions, all, up_to) if is_given]
    if len(given) != 1:
        found = f"{' and '.join(given)} exclude each other" if given else "nothing says which"
        raise TypeError(f"{name}: {found}: give a list of positions, or all=True, or up_to=position")
    _check_texts(key=key, reason=reason)
    if positions is None:
        usual = frozenset({State.PARKED})
        states = usual if state is None else _states(state, decision.applies_to, f"{name} takes")
        return Choice(
            states=states, key=key, reason=reason, after=_number("after", after), up_to=_last("up_to", up_to)
        )
    if key is not None or reason is not None or after:
        raise TypeError(f"{name}: key, reason and after go with all=True and up_to, not with positions")
    states = decision.applies_to if state is None else _states(state, decision.applies_to, f"{name} takes")
    several = [positions] if isinstance(positions, int) else positions
    return Named(positions=sorted({_number("positions", position) for position in several}), states=states)


def limited(limit: int | None) -> int | None:
    """How many at most."""
    return None if limit is None else _number("limit", limit)


def _check_texts(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None:
            check_text(name, text)


def _given(positions: object, all: bool, up_to: object) -> Iterator[tuple[str, bool]]:
    yield "positions", positions is not None
    yield "all", all
    yield "up_to", up_to is not None


def _states(given: States, allowed: frozenset[State], verb: str) -> frozenset[State]:
    states = [given] if isinstance(given, str) else list(given)
    for state in states:
        if state not in allowed:
            raise ValueError(
                f"{verb} no state {state!r}{suggestion(str(state), sorted(one.value for one in allowed))}"
            )
    if not states:
        raise ValueError("state: an empty list means none; leave it out for the usual ones")
    return frozenset(map(State, states))


def _last(name: str, value: int | None) -> int:
    return LAST if value is None else _number(name, value)


def _number(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LAST:
        raise ValueError(f"{name}: a number from 0 on is wanted, not {value!r}")
    return value
