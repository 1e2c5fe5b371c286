"""Restart: from any stored state the core continues, and the same inputs give the same outputs."""

from random import Random

from dispatch.examples import Example, route
from dispatch.owner import Owner, many, start, stored
from milepost.dispatch import Cursor, Routes


def test_from_a_stored_cursor_it_goes_on_with_what_was_open() -> None:
    owner = Owner(state=start(3, (5, 5), (7, 9)))
    owner.fill(*many(4, 10, "abcdefgh"), up_to=10)
    assert owner.next() == [4, 6, 10]
    owner.ack(4)
    assert owner.lane.cursor == Cursor(5, ((7, 9),))


def test_at_a_start_rows_that_are_due_are_asked_for() -> None:
    owner = Owner(state=start(3, rows=True))
    ask = owner.exchange().ask
    assert ask is not None
    assert (ask.due, ask.heads_after) == (True, "")


def test_with_no_rows_a_start_asks_nothing() -> None:
    owner = Owner(state=start(3))
    assert owner.lane.exchange(owner.now) is None


def test_an_unordered_lane_loads_what_is_due() -> None:
    owner = Owner(state=start(9, rows=True), ordered=False)
    owner.write(due=[stored(position, "retrying", key=None, due=99.0) for position in (1, 2)], next_due=200.0)
    assert owner.next() == [1, 2]
    assert owner.lane.wake_at() == 200.0


def test_nothing_is_asked_twice_when_there_is_nothing_to_find() -> None:
    owner = Owner(state=start(3, rows=True))
    owner.write()
    assert not owner.lane.urgent(owner.now)
    assert owner.lane.exchange(owner.now) is None


def test_what_is_held_in_memory_is_named_so_that_it_is_not_loaded_again() -> None:
    owner = Owner(state=start(9, rows=True), ordered=False)
    owner.write(due=[stored(1, "retrying", key=None, due=99.0, revision=3)])
    assert owner.next() == [1]
    owner.lane.poke()
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.holding == {1: 3}


def trace(seed: int) -> list[object]:
    """What comes out of a lane that many things happen to."""
    chance = Random(seed)
    owner = Owner(routes=Routes("round_robin"), window=20, timeout=10, chance=chance.random())
    found: list[object] = []
    position = 0
    for step in range(300):
        owner.now += chance.random()
        match chance.randrange(6):
            case 0:
                page = [
                    Example(position + 1 + n, key=chance.choice("abc"), p=chance.randrange(3)) for n in range(5)
                ]
                owner.fill(*page, up_to=position + 5)
                position = owner.lane.reach
            case 1:
                owner.lane.join(f"c{step}", [route(f"p == {chance.randrange(3)}", capacity=chance.randint(1, 5))])
            case 2 if owner.open:
                found.append([str(d.message) for d in owner.lane.ack([owner.open.popitem()[1]])])
            case 3 if owner.open:
                found.append([str(d.message) for d in owner.lane.retry([owner.open.popitem()[1]], owner.now)])
            case 4:
                exchange = owner.lane.exchange(owner.now)
                if exchange is not None:
                    owner.lane.exchanged(owner.answer(exchange))
                    found.append((exchange.write, exchange.ask))
            case _:
                found.append(owner.routed())
                found.append([str(d.message) for d in owner.expire()])
    return found


def test_the_same_inputs_give_the_same_outputs() -> None:
    for seed in range(20):
        assert trace(seed) == trace(seed)
