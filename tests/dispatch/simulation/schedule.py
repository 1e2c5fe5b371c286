"""Schedules drawn at random: the same seed gives the same one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

from dispatch.simulation import events, operations
from dispatch.simulation.operations import NUMBERS, Operation
from dispatch.simulation.setup import Setup
from milepost.dispatch.routing.routes import STRATEGIES

LENGTH = 80
LASTING = ("local", "ordered", "routed", "pinned", "crossed", "reordered")
"""Handlers without an order, handlers with one, consumers, consumers with pinned buckets; few messages of few
keys, on which people and exchanges cross; and one in which the order changes."""
KINDS = (*LASTING, "lives")
"""The same, and one in which the store goes back to earlier states."""


def drawn(kind: str, seed: int, length: int = LENGTH) -> tuple[Setup, list[Operation]]:
    """A setup of a kind and a schedule for it."""
    random = Random(f"{kind} {seed}")
    setup = _setup(kind, random)
    choices = {"crossed": _CROSSED, "lives": _LIVES, "reordered": _REORDERED}.get(kind, _COMMON)
    return setup, _Draw(random, setup, choices).schedule(length // 2 if kind == "crossed" else length)


def _setup(kind: str, random: Random) -> Setup:
    crossed, lossy = kind == "crossed", kind == "lives"
    some_routed = crossed or lossy or kind == "reordered"
    routed = kind in ("routed", "pinned") or (some_routed and random.random() < 0.3)
    strategies = STRATEGIES[2:] if kind == "pinned" else STRATEGIES[:2]
    small_or_large = (random.randint(1, 4), 1000)
    return Setup(
        lanes=1 if routed or crossed or kind == "reordered" else random.choice((1, 1, 2, 3)),
        keys=random.choice((1, 2) if crossed else (1, 2, 3, 5, 5)),
        ordered=kind == "ordered" or ((routed or some_routed) and random.random() < (0.8 if crossed else 0.5)),
        strategy=random.choice(strategies) if routed else None,
        on_park="block" if random.random() < 0.5 else "continue",
        window=random.choice((1, 2, 3, 5, 8, 12, 20)),
        window_bytes=random.choice((3, 10, 10_000)),
        timeout=random.choice((None, 3.0, 10.0)),
        track_all=random.random() < 0.1,
        probation=random.choice((0, 3, 40)),
        stall_after=random.choice((1, 3, 1000, 1000, 1000)),
        max_waiting=random.choice((*small_or_large, 1000)),
        max_unrouted=random.choice((*small_or_large, 1000)),
        attempts=random.randint(1, 4),
        killed=random.random() < 0.5,
        kept=random.random() < 0.5,
        lossy=lossy,
    )


class _Draw:
    """Draws operations that fit a setup."""

    def __init__(self, random: Random, setup: Setup, common: "Choices") -> None:
        self._random = random
        self._setup = setup
        pinned = (setup.strategy or "").startswith("pinned")
        choices = [*common, *(_PINNED if pinned else _ROUTED if setup.strategy else ())]
        # Some schedules are calm, some see a lot of one thing.
        self._choices = [choice for choice, _ in choices]
        self._weights = [
            weight * random.choice((0, 1, 1, 1, 3)) if weight < 4 else weight for _, weight in choices
        ]

    def schedule(self, length: int) -> list[Operation]:
        """Operations, those that belong together one after the other."""
        found: list[Operation] = [*_begin(self._random, self._setup)]
        while len(found) < length:
            found += self._random.choices(self._choices, self._weights)[0](self._random)
        return found[:length]


Choice = Callable[[Random], Iterable[Operation]]
Choices = tuple[tuple[Choice, int], ...]


def _where(random: Random) -> dict[str, int]:
    return {"worker": random.choice((0, 0, 0, 1, 2)), "lane": random.randrange(3)}


def _which(random: Random) -> dict[str, Any]:
    return {**_where(random), "which": random.randrange(10), "count": random.choice((1, 1, 2, 5))}


def _append(random: Random) -> Operation:
    return operations.Append(
        random.choice((1, 2, 4, 8)),
        random.randrange(5),
        random.randrange(NUMBERS),
        random.choice((1, 1, 2, 5)),
        random.choice((0, 0, 1, 3)),
    )


def _fill(random: Random) -> Operation:
    size, before, beyond = (
        random.choice((0, 1, 2, 5, 50)),
        random.choice((0, 0, 0, 4)),
        random.choice((0, 0, 1, 3)),
    )
    return operations.Fill(**_where(random), size=size, before=before, beyond=beyond)


def _next(random: Random) -> Operation:
    return operations.Next(**_where(random), limit=random.choice((0, 1, 2, 3, 100)))


def _ack(random: Random) -> Operation:
    return operations.Ack(**_which(random), twice=random.random() < 0.1)


def _retry(random: Random) -> Operation:
    after = random.choice((None, None, 0.0, 2.0))
    counted, cause = random.random() < 0.8, random.choice((0, 0, 1, 2, 3))
    return operations.Retry(**_which(random), after=after, counted=counted, cause=cause)


def _join(random: Random) -> Operation:
    wishes = tuple(_wish(random) for _ in range(random.choice((0, 1, 1, 1, 2))))
    return events.Join(worker=random.randrange(3), name=random.randrange(3), wishes=wishes)


def _wish(random: Random) -> events.Wish:
    return events.Wish(
        random.choice((0, 0, 0, 1, 2, 3, 4, 5, 6)),
        random.choice((0, 0, 0, 1)),
        random.choice((0, 1, 2, 2, 5, 5)),
        random.choice((0, 3, 100, 100, 100, 100)),
    )


def _redefine(random: Random) -> Operation:
    rejected = tuple(sorted(random.sample(range(NUMBERS), random.choice((0, 1, 3)))))
    window, attempts = random.choice((1, 3, 10)), random.randint(1, 4)
    return events.Redefine(rejected, random.random() < 0.5, window, attempts)


def _change(random: Random) -> Operation:
    blocks = random.choice((None, None, True, False))
    window, attempts = random.choice((1, 4, 16)), random.randint(1, 4)
    return events.Change(**_where(random), blocks=blocks, window=window, attempts=attempts)


def _reorder(random: Random) -> Operation:
    return events.Reorder(random.choice((0, 0, 1, 2)), random.randrange(3))


def _begin(random: Random, setup: Setup) -> Iterable[Operation]:
    """Something to do, and someone to do it."""
    yield operations.Append(random.randint(4, 12), random.randrange(5), random.randrange(NUMBERS))
    if setup.strategy is not None:
        yield events.Join(name=random.randrange(3), wishes=(events.Wish(capacity=random.choice((1, 3, 6))),))
        yield _join(random)


def _one(operation: Callable[[Random], Operation]) -> Choice:
    return lambda random: [operation(random)]


def _take_over(random: Random) -> Iterable[Operation]:
    """Another process takes lanes of one that dies, leaves them, or goes on as if they were its own."""
    yield events.Start()
    end = random.randrange(4)
    if end == 0:
        yield events.Kill(random.randrange(3))
    elif end == 1:
        yield events.Release(random.randrange(3), random.randrange(3))
    worker = random.randrange(3)
    for lane in range(3):
        yield events.Take(worker, lane, by_force=end == 2)
    yield events.Join(worker, random.randrange(3))
    yield _there(_join(random), {"worker": worker})
    yield operations.Pump(worker, random.random() < 0.5)


def _round(random: Random) -> Iterable[Operation]:
    """What a worker does most of the time."""
    where = _where(random)
    yield operations.Fill(**where)
    yield operations.Next(**where)
    yield _there(_settle(random), where)
    yield operations.Swap(**where)
    yield operations.Next(**where, limit=random.choice((1, 10)))


def _go_on(random: Random) -> Iterable[Operation]:
    """Something is settled, and the worker goes on until there is nothing to do."""
    where = _where(random)
    yield _there(_settle(random), where)
    yield operations.Pump(where["worker"], random.random() < 0.5, random.random() < 0.5)


def _settle(random: Random) -> Operation:
    return random.choice((_ack, _ack, _retry, _retry, _park, _give_back))(random)


def _park(random: Random) -> Operation:
    return operations.Park(**_which(random))


def _give_back(random: Random) -> Operation:
    return operations.GiveBack(**_which(random))


def _meanwhile(random: Random) -> Iterable[Operation]:
    """Something happens between an exchange and its answer."""
    where = _where(random)
    things = (_settle, _settle, _fill, _next, _next, _person, _person, _join, _expire, _leave, _lose, _pass)
    between = [_there(random.choice(things)(random), where) for _ in range(random.randint(1, 4))]
    before = random.randint(0, len(between))
    yield operations.Make(**where, commits=random.choice((0, 0, 2)))
    yield from between[:before]
    yield operations.Abandon(**where) if random.random() < 0.15 else operations.Commit(**where)
    yield from between[before:]
    yield operations.Learn(**where)
    if random.random() < 0.5:
        yield operations.Pump(where["worker"], random.random() < 0.5, random.random() < 0.5)
    else:
        yield operations.Next(**where)


def _another_life(random: Random) -> Iterable[Operation]:
    """The store goes back while owners have something at hand, and they go on before and after they notice."""
    where, other = _where(random), {**_where(random), "worker": random.randrange(3)}
    before = (_append, _fill, _next, _settle, _swap, _make, _commit)
    for _ in range(random.randint(0, 3)):
        yield _there(random.choice(before)(random), where)
    yield _append(random)
    yield _there(_read(random), where)
    yield _go_back(random)
    if random.random() < 0.2:
        yield _go_back(random)
    yield _append(random)
    after = (_append, _append, _take, _take, _notice, _notice, *_AFTERWARDS)
    for _ in range(random.randint(0, 6)):
        yield _there(random.choice(after)(random), random.choice((where, where, other)))
    take = events.Take(**where, by_force=True)
    ends: tuple[Sequence[Operation], ...] = (
        (),
        (events.Notice(where["worker"]), take, operations.FillIn(**where)),
        (take, operations.Fill(**where)),
        (events.Release(**where),),
    )
    yield from random.choice(ends)
    yield _there(_next(random), where)


def _late_answer(random: Random) -> Iterable[Operation]:
    """The store goes back between the commit of an exchange and the reading of the messages of its rows."""
    where = _where(random)
    yield _append(random)
    yield operations.Fill(**where)
    yield operations.Next(**where)
    yield _there(operations.Retry(which=random.randrange(10), count=5, after=0.0, counted=False), where)
    yield operations.Swap(**where)
    if random.random() < 0.5:
        yield _there(random.choice((_make, _pass, _person))(random), where)
    yield operations.Make(**where)
    yield operations.Commit(**where)
    yield events.GoBack(random.randint(1, 9))
    yield _append(random)
    yield _append(random)
    yield operations.Learn(**where)
    yield operations.Next(**where)


def _go_back(random: Random) -> Operation:
    return events.GoBack(random.choice((0, 0, 1, 1, 2, 3, 5, 8, 20)))


def _notice(random: Random) -> Operation:
    return events.Notice(_where(random)["worker"])


def _take(random: Random) -> Operation:
    return events.Take(**_where(random), by_force=random.random() < 0.5)


def _read(random: Random) -> Operation:
    """A page for several lanes begins where the lowest of them stands."""
    size, before = random.choice((2, 50)), random.choice((0, 8, 40))
    return operations.Read(**_where(random), size=size, before=before, beyond=random.choice((0, 0, 1, 3)))


def _fill_in(random: Random) -> Operation:
    return operations.FillIn(**_where(random))


def _commit(random: Random) -> Operation:
    return operations.Commit(**_where(random))


def _learn(random: Random) -> Operation:
    return operations.Learn(**_where(random))


def _there(operation: Operation, where: dict[str, int]) -> Operation:
    """The operation, at a worker and lane."""
    here = {name: number for name, number in where.items() if hasattr(operation, name)}
    return cast(Operation, replace(cast(Any, operation), **here))


def _person(random: Random) -> Operation:
    person = random.choice((events.RetryRow, events.RetryRow, events.SkipRow))
    return person(random.randrange(10), random.random() < 0.6)


def _expire(random: Random) -> Operation:
    return operations.Expire(**_where(random))


def _leave(random: Random) -> Operation:
    return events.Leave(random.randrange(3), random.randrange(3))


def _lose(random: Random) -> Operation:
    return events.Lose(random.randrange(3), random.randrange(3))


def _pass(random: Random) -> Operation:
    return operations.Pass(random.choice((0.5, 2.0, 8.0, 30.0)))


def _late(random: Random) -> Operation:
    return operations.Late(**_where(random), which=random.randrange(9), how=random.randrange(6))


def _make(random: Random) -> Operation:
    return operations.Make(**_where(random), commits=random.choice((0, 0, 1, 3)))


def _swap(random: Random) -> Operation:
    return operations.Swap(**_where(random), commits=random.choice((0, 0, 1, 3)))


_AFTERWARDS = (_fill_in, _fill, _next, _settle, _make, _commit, _learn, _swap, _person)

_COMMON: Choices = (
    (_one(_append), 12),
    (_round, 14),
    (_meanwhile, 14),
    (_go_on, 8),
    (_take_over, 3),
    (_one(_fill), 4),
    (_one(_next), 6),
    (_one(_settle), 10),
    (_one(_swap), 5),
    (_one(_person), 16),
    (_one(_pass), 10),
    (_one(_expire), 3),
    (_one(_late), 2),
    (_one(lambda random: operations.Extend(**_which(random), seconds=random.choice((1.0, 5.0)))), 1),
    (_one(lambda random: operations.Stop(**_which(random))), 1),
    (_one(_make), 2),
    (_one(lambda random: operations.Commit(**_where(random))), 2),
    (_one(lambda random: operations.Learn(**_where(random))), 2),
    (_one(lambda random: operations.Abandon(**_where(random))), 1),
    (_one(lambda random: events.Start()), 1),
    (_one(lambda random: events.Take(**_where(random), by_force=random.random() < 0.3)), 2),
    (_one(lambda random: events.Release(**_where(random))), 2),
    (_one(lambda random: events.Forget(**_where(random))), 1),
    (_one(lambda random: events.MoveCursor(random.randrange(3), random.randrange(101))), 1),
    (_one(lambda random: events.Poke()), 2),
    (_one(_redefine), 1),
    (_one(_change), 1),
)

_LIVES: Choices = (
    *_COMMON,
    (_another_life, 16),
    (_late_answer, 6),
    (_one(_go_back), 1),
    (_one(_notice), 3),
    (_one(_read), 3),
    (_one(_fill_in), 3),
)

_REORDERED: Choices = (
    *_COMMON,
    (_one(_reorder), 8),
)

_CROSSED: Choices = (
    (_one(_append), 8),
    (_round, 8),
    (_meanwhile, 16),
    (_go_on, 8),
    (_one(_settle), 8),
    (_one(_next), 4),
    (_one(_swap), 6),
    (_one(_person), 16),
    (_one(_pass), 8),
    (_one(lambda random: events.Poke()), 3),
    (_one(_change), 1),
    (_take_over, 1),
)

_ROUTED: Choices = (
    (_one(_join), 8),
    (_one(_leave), 2),
    (_one(_lose), 2),
)

_PINNED: Choices = (
    *_ROUTED,
    (_one(lambda random: events.Doubt(random.randrange(3), random.randrange(3), random.random() < 0.3)), 2),
)
