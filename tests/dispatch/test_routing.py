"""Routing through a lane: full, paused, unrouted, in order."""

from typing import Any

import pytest

from dispatch.examples import Example, route
from dispatch.owner import Owner, held, start, stored
from milepost.dispatch import Cursor, LimitReached, LoadedRow, Routes, RowCounts


def lane(**settings: Any) -> Owner:
    return Owner(routes=Routes("round_robin"), **{"ordered": False, **settings})


def marked(*marks: int, first: int = 1, key: str = "a") -> list[Example]:
    """Messages with a property `p`."""
    return [Example(first + number, key=key, p=mark) for number, mark in enumerate(marks)]


def unrouted(position: int, p: int, *, key: str | None = None, label: str | None = None) -> LoadedRow[Example]:
    loaded = stored(position, "unrouted", key=key, route=label)
    return LoadedRow(loaded.row, Example(position, p=p))


def test_a_message_goes_to_the_highest_priority_that_matches() -> None:
    owner = lane()
    owner.lane.join("low", [route(priority=1)])
    owner.lane.join("high", [route("p == 1", priority=2)])
    owner.fill(*marked(1, 2), up_to=2)
    assert sorted(owner.routed()) == [(1, "high"), (2, "low")]


def test_a_full_higher_route_does_not_spill_over_while_other_messages_go_on() -> None:
    owner = lane()
    owner.lane.join("high", [route("p == 1", priority=2, capacity=1)])
    owner.lane.join("low", [route(priority=1)])
    owner.fill(*marked(1, 1, 2, 1, 2), up_to=5)
    assert sorted(owner.routed()) == [(1, "high"), (3, "low"), (5, "low")]
    owner.ack(1)
    assert owner.routed() == [(2, "high")]


def test_unmatched_messages_become_unrouted_without_holding_up_the_rest() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1")])
    owner.fill(*marked(2, 1, 2, 1), up_to=4)
    assert owner.routed() == [(2, "one"), (4, "one")]
    assert owner.states() == {1: "unrouted", 3: "unrouted"}
    assert owner.lane.cursor == Cursor(1, ((3, 3),))


def test_with_an_order_an_unrouted_message_holds_its_key() -> None:
    owner = lane(ordered=True)
    owner.lane.join("one", [route("p == 1")])
    owner.fill(*marked(2, 1, key="a"), *marked(1, first=3, key="b"), up_to=3)
    assert owner.routed() == [(3, "one")]
    assert owner.states() == {1: "unrouted", 2: "waiting"}


def test_unrouted_messages_in_memory_go_out_in_order_as_soon_as_a_route_matches() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1")])
    owner.fill(*marked(2, 1, 2), up_to=3)
    assert owner.routed() == [(2, "one")]
    owner.lane.join("two", [route("p == 2")])
    assert owner.routed() == [(1, "two"), (3, "two")]


def test_unrouted_rows_go_out_in_order_and_before_new_messages_as_soon_as_a_route_matches() -> None:
    owner = lane(state=start(9, rows=True, counts=RowCounts(unrouted=3)))
    owner.lane.join("one", [route("p == 1")])
    owner.lane.join("two", [route("p == 2")])
    owner.fill(*marked(2, 1, first=10), up_to=11)
    assert owner.routed() == []
    ask = owner.exchange().ask
    assert ask is not None
    assert (ask.unrouted_after, ask.routes) == (0, None)
    owner.lane.abandon()
    owner.write(unrouted=[unrouted(1, 2), unrouted(4, 3)], unrouted_end=4)
    assert owner.routed() == [(1, "two")]
    owner.write(unrouted=[unrouted(5, 2)], unrouted_end=None)
    given = owner.routed()
    assert [position for position, consumer in given if consumer == "two"] == [5, 10]
    assert (11, "one") in given


def test_with_an_order_unrouted_rows_come_back_with_the_rows_of_their_key() -> None:
    owner = lane(state=start(9, rows=True, counts=RowCounts(unrouted=1)), ordered=True)
    owner.lane.join("two", [route("p == 2")])
    assert owner.routed() == []
    owner.write(unrouted=[unrouted(1, 2, key="a")])
    waiting = LoadedRow(stored(3, "waiting").row, Example(3, p=2))
    owner.write(held=held(unrouted(1, 2, key="a"), waiting))
    assert owner.routed() == [(1, "two")]
    owner.ack(1)
    assert owner.routed() == [(3, "two")]


def test_a_capacity_of_0_pauses_and_nothing_spills_over() -> None:
    owner = lane()
    owner.lane.join("paused", [route("p == 1", capacity=0)])
    owner.lane.join("other", [route(priority=-1)])
    owner.fill(*marked(1, 2), up_to=2)
    assert owner.routed() == [(2, "other")]
    owner.lane.configure("paused", [route("p == 1", capacity=1)])
    assert owner.routed() == [(1, "paused")]


def test_after_being_full_more_comes_at_80_percent() -> None:
    owner = lane()
    owner.lane.join("one", [route(capacity=10)])
    owner.fill(*marked(*[1] * 20), up_to=20)
    assert len(owner.routed()) == 10
    owner.ack(1)
    assert owner.routed() == []
    owner.ack(2)
    assert [position for position, _ in owner.routed()] == [11, 12]


def test_one_message_may_overshoot_the_bytes() -> None:
    owner = lane()
    owner.lane.join("one", [route(capacity_bytes=250)])
    owner.fill(*marked(1, 1, 1, 1), up_to=4)
    assert [position for position, _ in owner.routed()] == [1, 2, 3]


def test_changes_keep_the_budget() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1", capacity=2)])
    owner.fill(*marked(1, 1, 1, 2, 2), up_to=5)
    assert len(owner.routed()) == 2
    owner.lane.configure("one", [route("p >= 1", capacity=3)])
    assert owner.routed() == [(3, "one")]
    owner.ack(1, 2)
    assert len(owner.routed()) == 2


def test_without_any_consumer_nothing_is_unrouted() -> None:
    owner = lane()
    owner.fill(*marked(1), up_to=1)
    assert owner.routed() == []
    assert owner.lane.exchange(owner.now) is None


def test_a_consumer_without_routes_drains() -> None:
    owner = lane()
    owner.lane.join("one", [route()])
    owner.lane.join("two", [route()])
    owner.fill(*marked(1, 1), up_to=2)
    assert owner.routed() == [(1, "one"), (2, "two")]
    owner.lane.configure("one", [])
    owner.fill(*marked(1, 1, first=3), up_to=4)
    assert owner.routed() == [(3, "two"), (4, "two")]
    owner.ack(1)


def test_what_a_leaving_consumer_has_goes_to_others_uncounted() -> None:
    owner = lane()
    owner.lane.join("one", [route()])
    owner.fill(*marked(1), up_to=1)
    owner.routed()
    owner.lane.join("two", [route()])
    owner.lane.leave("one")
    assert owner.routed() == [(1, "two")]
    assert owner.open[1].attempt == 1


def test_what_a_lost_consumer_had_is_an_attempt_and_waits() -> None:
    owner = lane()
    owner.lane.join("one", [route()])
    owner.lane.join("two", [route()])
    owner.fill(*marked(1), up_to=1)
    assert owner.routed() == [(1, "one")]
    owner.lane.lose("one", owner.now)
    assert owner.routed() == []
    row = owner.write()[1]
    assert row is not None
    assert (row.state, row.attempts, row.due) == ("retrying", 1, 105)


def test_a_lost_consumer_is_one_failure_and_others_go_on() -> None:
    owner = lane(stall_after=3, ordered=False)
    owner.lane.join("one", [route()])
    owner.fill(*marked(*[1] * 4), up_to=4)
    assert owner.routed() == [(position, "one") for position in range(1, 5)]
    owner.lane.join("two", [route()])
    owner.lane.lose("one", owner.now)
    assert owner.breaker.stalled is None
    assert owner.exchange().write is not None
    owner.fill(*marked(1, first=5), up_to=5)
    assert owner.routed() == [(5, "two")]


def test_consumers_that_are_lost_one_after_the_other_stall_it() -> None:
    owner = lane(stall_after=3, ordered=False)
    owner.fill(*marked(*[1] * 4), up_to=4)
    for name in ("one", "two", "three"):
        assert owner.breaker.stalled is None
        owner.lane.join(name, [route(capacity=1)])
        owner.routed()
        owner.lane.lose(name, owner.now)
    assert owner.breaker.stalled == "the last 3 attempts failed"


def test_what_consumers_have_does_not_fill_the_window() -> None:
    owner = lane(window=2)
    owner.lane.join("slow", [route("p == 1")])
    owner.lane.join("idle", [route("p == 2")])
    for first in (1, 3, 5):
        assert owner.fill(*marked(1, 1, first=first), up_to=first + 1)
        assert len(owner.routed()) == 2
    assert owner.fill(*marked(2, first=7), up_to=7)
    assert owner.routed() == [(7, "idle")]


def full(**settings: Any) -> Owner:
    """A window full of messages for a consumer that is full, while another has nothing to do."""
    owner = lane(window=3, **settings)
    owner.lane.join("full", [route("p == 1", capacity=1)])
    owner.lane.join("idle", [route("p == 2")])
    owner.fill(*marked(1, 1, 1, 1), up_to=4)
    assert owner.routed() == [(1, "full")]
    owner.fill(*marked(1, first=4), up_to=4)
    assert owner.routed() == []
    assert owner.lane.room() == 0
    return owner


def test_a_full_consumer_does_not_hold_up_an_idle_one_beyond_the_window() -> None:
    owner = full()
    assert owner.states(counts=RowCounts(unrouted=3)) == {2: "unrouted", 3: "unrouted", 4: "unrouted"}
    owner.fill(*marked(2, 1, first=5), up_to=6)
    assert owner.routed() == [(5, "idle")]


def test_what_was_set_aside_for_a_full_consumer_goes_out_first_when_it_has_room() -> None:
    owner = full()
    rows = owner.write(counts=RowCounts(unrouted=3))
    owner.fill(*marked(1, first=5), up_to=5)
    assert owner.routed() == []
    owner.ack(1)
    assert owner.routed() == []
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.unrouted_after == 1
    assert rows[2] is not None
    assert ask.routes is not None
    assert list(ask.routes) == [rows[2].route]
    assert ask.unrouted_limit == 1
    owner.lane.abandon()
    owner.write(unrouted=[unrouted(2, 1, label=rows[2].route)], unrouted_end=2)
    assert owner.routed() == [(2, "full")]


def test_while_nobody_is_idle_a_full_consumer_just_stops_the_reading() -> None:
    owner = lane(window=3)
    owner.lane.join("full", [route(capacity=1)])
    owner.fill(*marked(1, 1, 1, 1), up_to=4)
    owner.routed()
    owner.fill(*marked(1, first=4), up_to=4)
    assert owner.lane.room() == 0
    assert owner.lane.exchange(owner.now) is None


@pytest.mark.parametrize("left", [0, 2])
def test_at_max_unrouted_the_cursor_stops(left: int) -> None:
    owner = lane(max_unrouted=3, state=start(counts=RowCounts(unrouted=3 - left)))
    owner.lane.join("one", [route("p == 1")])
    owner.fill(*marked(2, 2, 2), up_to=3)
    owner.routed()
    if left:
        assert owner.states(counts=RowCounts(unrouted=3)) == {1: "unrouted", 2: "unrouted"}
    assert owner.lane.exchange(owner.now) is None
    assert owner.lane.cursor.position == left
    assert owner.lane.stopped == LimitReached(limit="max_unrouted", most=3, rows=3, filters=("p == 1",))


def test_a_suspect_that_cannot_go_out_at_once_holds_up_nobody() -> None:
    running = stored(1, "running", key=None)
    owner = lane(state=start(1, rows=True, unclean=True, running=[running]), probation=0)
    owner.lane.join("one", [route("p == 1")])
    owner.fill(*marked(1, first=2), up_to=2)
    assert owner.routed() == []
    assert owner.states() == {1: "unrouted"}
    assert owner.routed() == [(2, "one")]


def test_what_comes_back_goes_before_what_is_queued_behind_it() -> None:
    owner = lane()
    owner.lane.join("one", [route(capacity=2)])
    owner.fill(*marked(1, 1, 1, 1), up_to=4)
    assert owner.next() == [1, 2]
    # Those that have no room yet are queued by now.
    assert owner.next() == []
    owner.lane.give_back([owner.open[2]])
    owner.ack(1)
    assert owner.next() == [2, 3]


def test_what_a_consumer_has() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1")])
    owner.lane.join("two", [route("p == 2")])
    owner.fill(*marked(1, 2, 1), up_to=3)
    owner.next()
    assert [each.message.position for each in owner.lane.held_by("one")] == [1, 3]
    owner.ack(1)
    assert [each.message.position for each in owner.lane.held_by("one")] == [3]
    assert [each.message.position for each in owner.lane.held_by("two")] == [2]


def test_a_delivery_that_was_extended_to_the_same_time_is_overdue_once() -> None:
    owner = lane(timeout=30)
    owner.lane.join("one", [route()])
    owner.fill(*marked(1), up_to=1)
    owner.next()
    assert owner.lane.extend([owner.open[1]], owner.now + 20, 10) == []
    owner.now += 30
    assert owner.lane.overdue(owner.now) == [owner.open[1]]


def test_what_is_overdue_is_told_once_and_is_still_in_force() -> None:
    owner = lane(timeout=30)
    owner.lane.join("one", [route()])
    owner.fill(*marked(1), up_to=1)
    owner.next()
    owner.now += 30
    assert owner.lane.overdue(owner.now) == [owner.open[1]]
    assert owner.lane.overdue(owner.now) == []
    claim = owner.open[1]
    assert claim.is_in_force
    owner.lane.extend([owner.open[1]], owner.now, 10)
    owner.now += 10
    assert owner.lane.overdue(owner.now) == [owner.open[1]]
    owner.lane.give_back([owner.open[1]])
    assert [each for each in (claim,) if each.is_in_force] == []
    assert owner.next() == [1]


def test_a_failed_attempt_names_its_consumer() -> None:
    owner = lane()
    owner.lane.join("one", [route()])
    owner.fill(*marked(1, 1, 1), up_to=3)
    owner.next()
    owner.retry(1)
    owner.park(2)
    owner.lane.lose("one", owner.now, "it vanished")
    rows = owner.write()
    assert {position: row.consumer for position, row in rows.items() if row} == {1: "one", 2: "one", 3: "one"}
    assert rows[3] is not None
    assert rows[3].reason == "it vanished"
