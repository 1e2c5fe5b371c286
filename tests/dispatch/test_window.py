"""Window and cursor: nothing open is passed, everything else is."""

from random import Random

import pytest

from dispatch.examples import Example
from dispatch.owner import Owner, many, start
from milepost.dispatch import Cursor


def test_the_cursor_stands_before_the_lowest_open_message() -> None:
    owner = Owner()
    owner.fill(*many(1, 5, "abcde"), up_to=5)
    assert owner.next() == [1, 2, 3, 4, 5]
    owner.ack(1, 2, 4)
    assert owner.lane.cursor == Cursor(2, ((4, 4),))


def test_what_was_rejected_is_passed_as_soon_as_everything_before_it_is_settled() -> None:
    owner = Owner()
    owner.fill(Example(10), up_to=1_000_000)
    assert owner.next() == [10]
    assert owner.lane.cursor == Cursor(9, ((11, 1_000_000),))
    owner.ack(10)
    assert owner.lane.cursor == Cursor(1_000_000)


def test_a_million_rejected_in_a_row_are_passed_at_once() -> None:
    owner = Owner()
    owner.fill(up_to=1_000_000)
    assert owner.lane.cursor == Cursor(1_000_000)


def test_what_lies_behind_a_rejected_message_is_not_passed() -> None:
    owner = Owner()
    owner.fill(Example(1), Example(3, key="b"), up_to=4)
    owner.next()
    owner.ack(3)
    assert owner.lane.cursor == Cursor(0, ((2, 4),))


@pytest.mark.parametrize("seed", range(20))
def test_ahead_is_never_longer_than_the_open_messages_and_one(seed: int) -> None:
    chance = Random(seed)
    owner = Owner(window=50, ordered=False)
    position = 0
    for _ in range(200):
        page = [Example(position := position + chance.randint(1, 3)) for _ in range(chance.randint(0, 20))]
        owner.fill(*page, up_to=position)
        position = owner.lane.reach
        given = owner.next(chance.randint(0, 30))
        owner.ack(*chance.sample(given, len(given) // 2))
        assert len(owner.lane.cursor.ahead) <= 50 + 1
        assert len(owner.lane.cursor.ahead) <= len(owner.lane._lane_memory.window.entries) + 1


def test_a_full_window_takes_no_more_and_says_how_far_it_came() -> None:
    owner = Owner(window=2)
    assert not owner.fill(Example(1), Example(5), Example(9), up_to=9)
    assert owner.lane.reach == 8
    assert owner.lane.room() == 0
    owner.next()
    owner.ack(1)
    assert owner.lane.room() == 1
    assert owner.fill(Example(9), up_to=12)
    assert owner.lane.reach == 12


def test_the_window_is_bounded_in_bytes_and_one_message_may_overshoot_them() -> None:
    owner = Owner(window_bytes=1000)
    assert not owner.fill(*(Example(position, size=600) for position in (1, 2, 3)), up_to=3)
    assert owner.lane.reach == 2
    assert owner.lane.room() == 0


@pytest.mark.parametrize(
    ("window", "window_bytes", "is_starved"),
    [(11, 10_000, False), (12, 10_000, True), (100, 1100, False), (100, 1120, True)],
)
def test_a_lane_starves_when_a_tenth_is_free_in_messages_and_bytes(
    window: int, window_bytes: int, is_starved: bool
) -> None:
    """No page is read for less, though nothing can be handed out: here all is of one key."""
    owner = Owner(window=window, window_bytes=window_bytes)
    owner.fill(*(Example(position, size=100) for position in range(1, 11)), up_to=10)
    assert not owner.lane.is_starved
    assert owner.next() == [1]
    assert owner.lane.is_starved is is_starved


def test_a_message_larger_than_the_window_is_taken_alone() -> None:
    owner = Owner(window_bytes=10)
    assert owner.fill(Example(1, size=1_000_000), up_to=1)
    assert owner.next() == [1]


def test_a_page_that_overlaps_what_was_taken_gives_nothing_twice() -> None:
    owner = Owner()
    owner.fill(Example(1), Example(2, key="b"), up_to=2)
    owner.fill(Example(1), Example(2, key="b"), Example(3, key="c"), up_to=3)
    assert owner.next() == [1, 2, 3]


def test_what_a_start_put_ahead_is_not_handed_out_and_stays_ahead() -> None:
    owner = Owner(state=start(10, (13, 20), (30, 40)))
    owner.fill(Example(12), Example(15, key="b"), Example(25, key="c"), up_to=25)
    assert owner.next() == [12, 25]
    assert owner.lane.cursor == Cursor(11, ((13, 24), (30, 40)))
    owner.ack(12, 25)
    assert owner.lane.cursor == Cursor(25, ((30, 40),))


def test_reading_goes_on_behind_what_is_done_already() -> None:
    owner = Owner(state=start(10, (11, 1_000_000)))
    assert owner.lane.reach == 1_000_000
    assert owner.lane.cursor == Cursor(1_000_000)


def test_a_lane_asks_for_no_more_rows_than_there_is_room_for() -> None:
    owner = Owner(window=80, state=start(10, rows=True))
    owner.fill(*many(11, 50, "abcd"), up_to=50)
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.limit == 40
    assert ask.per_key * len(ask.keys) == 40


def test_in_a_full_window_an_eighth_is_kept_for_rows_and_one_for_each_key() -> None:
    owner = Owner(window=80, state=start(10, rows=True))
    owner.fill(*many(11, 90, "abcd"), up_to=90)
    ask = owner.exchange().ask
    assert ask is not None
    assert (ask.limit, ask.per_key) == (11, 2)


def test_memory_does_not_grow_while_the_first_message_stays_open() -> None:
    owner = Owner(window=10, ordered=False)
    owner.fill(Example(1), up_to=1)
    assert owner.next() == [1]
    for position in range(2, 3000):
        owner.fill(Example(position), up_to=position)
        owner.ack(*owner.next())
    assert owner.lane.cursor == Cursor(0, ((2, 2999),))
    assert len(owner.lane._lane_memory.window.entries) == 1
