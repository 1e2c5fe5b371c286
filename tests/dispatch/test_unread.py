"""What was read and nobody has had is read again in another light; what somebody had is not."""

import random
from typing import Any

import pytest

from dispatch.examples import Example, route
from dispatch.owner import Owner, many, start
from milepost.dispatch import Cursor, Routes


def lane(capacity: int = 1, **settings: Any) -> Owner:
    """With one consumer of so much room."""
    owner = Owner(routes=Routes("round_robin"), **{"ordered": False, **settings})
    owner.lane.join("one", [route(capacity=capacity)])
    return owner


def test_what_no_consumer_has_had_is_forgotten() -> None:
    owner = lane()
    owner.fill(*many(1, 5), up_to=9)
    assert owner.next() == [1]
    assert owner.lane.unread() == Cursor(1, ((6, 9),))
    assert (owner.lane.reach, owner.lane.cursor) == (1, Cursor(0, ((6, 9),)))
    owner.fill(Example(4), up_to=9)
    owner.ack(1)
    assert owner.next() == [4]
    assert owner.lane.cursor == Cursor(3, ((5, 9),))


def test_what_was_rejected_stays_so() -> None:
    owner = lane()
    owner.fill(Example(3), up_to=9)
    assert owner.lane.unread() == Cursor(2, ((4, 9),))
    owner.fill(*many(1, 12), up_to=12)
    assert owner.next() == [3]
    owner.ack(3)
    assert owner.next() == [10]


def test_what_is_settled_stays_so_though_others_before_it_are_open() -> None:
    owner = lane(capacity=3)
    owner.fill(*many(1, 5), up_to=5)
    assert owner.next() == [1, 2, 3]
    owner.ack(2, 3)
    assert owner.lane.unread() == Cursor(3)
    owner.fill(*many(1, 5), up_to=5)
    assert owner.next() == [4, 5]


def test_what_got_a_row_stays_and_so_does_what_an_earlier_owner_passed() -> None:
    owner = Owner(routes=Routes("round_robin"), state=start(2, (5, 6)), ordered=False)
    owner.lane.join("one", [route("p == 1")])
    owner.fill(Example(3, p=1), Example(4, p=2), Example(7, p=1), up_to=9)
    assert owner.next() == [3, 7]
    assert owner.lane.unread() == Cursor(9)
    owner.fill(Example(5, p=1), Example(10, p=1), up_to=10)
    assert owner.states() == {4: "unrouted"}
    assert owner.next() == [10]


def test_what_is_about_to_get_a_row_stays() -> None:
    owner = Owner(routes=Routes("round_robin"), ordered=False)
    owner.lane.join("one", [route("p == 1")])
    owner.fill(Example(1, p=1), Example(2, p=2), up_to=5)
    assert owner.next() == [1]
    assert owner.lane.unread() == Cursor(5)
    owner.fill(Example(1, p=1), Example(2, p=2), up_to=5)
    assert owner.next() == []
    assert owner.states() == {2: "unrouted"}


def test_what_waits_behind_a_failure_stays() -> None:
    owner = lane(ordered=True)
    owner.fill(*many(1, 3), up_to=5)
    assert owner.next() == [1]
    owner.retry(1)
    exchange = owner.exchange()
    assert owner.lane.unread() == Cursor(5)
    owner.lane.exchanged(owner.answer(exchange))
    assert owner.lane.cursor == Cursor(5)


def test_keys_are_forgotten_with_their_messages() -> None:
    owner = lane(capacity=10, ordered=True)
    owner.fill(*many(1, 6, keys=("a", "b")), up_to=6)
    assert owner.next() == [1, 2]
    owner.lane.unread()
    owner.ack(1, 2)
    assert owner.next() == []
    owner.fill(*many(3, 6, keys=("a", "b")), up_to=6)
    assert owner.next() == [3, 4]
    owner.ack(3, 4)
    assert owner.next() == [5, 6]


def test_only_where_there_are_consumers() -> None:
    with pytest.raises(TypeError, match="no consumers"):
        Owner().lane.unread()


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.shard("simulation")) for seed in range(12, 60))]
)
def test_at_any_moment_nothing_is_lost_and_nothing_comes_twice(seed: int) -> None:
    chance = random.Random(seed)
    ordered = chance.random() < 0.5
    owner = lane(capacity=chance.randint(1, 6), ordered=ordered, window=chance.randint(2, 12))
    log = [Example(position, key=chance.choice("abc"), p=chance.randrange(3)) for position in range(1, 80)]
    wanted = {0, 1, 2}
    handed: list[int] = []
    rejected: set[int] = set()
    for _ in range(1000):
        match chance.choice(["fill", "next", "settle", "write", "unread"]):
            case "fill":
                up_to = min(79, owner.lane.reach + chance.randint(1, 10))
                page = [each for each in log if owner.lane.reach < each.position <= up_to]
                before = owner.lane.reach
                owner.fill(*[each for each in page if each.properties["p"] in wanted], up_to=up_to)
                passed = [each for each in page if before < each.position <= owner.lane.reach]
                rejected |= {each.position for each in passed if each.properties["p"] not in wanted}
            case "next":
                handed += owner.next()
            case "settle" if owner.open:
                owner.ack(position := chance.choice(list(owner.open)))
                del owner.open[position]
            case "write" if (exchange := owner.lane.exchange(owner.now)) is not None:
                owner.lane.exchanged(owner.answer(exchange, rows=False))
            case "unread" if chance.random() < 0.2:
                kept = owner.lane.unread()
                assert all(_has(kept, position) for position in (*rejected, *handed))
                wanted = set(chance.sample(range(3), 2))
    while owner.lane.reach < 79 or owner.open or owner.lane.has_next:
        owner.fill(*[each for each in log if each.properties["p"] in wanted], up_to=79)
        rejected |= {each.position for each in log if each.properties["p"] not in wanted} - set(handed)
        handed += owner.next()
        for position in list(owner.open):
            owner.ack(position)
            del owner.open[position]
    assert len(handed) == len(set(handed))
    assert set(handed) | rejected == set(range(1, 80))
    assert owner.lane.cursor == Cursor(79)
    if ordered:
        keys = {each.position: each.stream for each in log}
        for key in "abc":
            of_key = [position for position in handed if keys[position] == key]
            assert of_key == sorted(of_key)


def _has(cursor: Cursor, position: int) -> bool:
    return position <= cursor.position or any(low <= position <= high for low, high in cursor.ahead)
