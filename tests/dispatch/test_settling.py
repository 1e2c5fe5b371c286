"""Settling: one or many, by claim."""

import pytest

from dispatch.examples import Example, route
from dispatch.owner import Owner, held, many, start, stored
from milepost.dispatch import Cursor, Lane, LaneDelivery, Routes


def refusals(lane: Lane[Example], delivery: LaneDelivery[Example], now: float) -> list[bool]:
    """Whether each way of settling refuses it."""
    return [
        lane.ack([delivery]) == [delivery],
        lane.skip([delivery]) == [delivery],
        lane.retry([delivery], now) == [delivery],
        lane.park([delivery], now) == [delivery],
        lane.give_back([delivery]) == [delivery],
        lane.extend([delivery], now, 30) == [delivery],
    ]


def test_many_are_settled_at_once_and_the_refused_are_told_apart() -> None:
    owner = Owner()
    owner.fill(*many(1, 4, "abcd"), up_to=4)
    owner.next()
    owner.ack(2)
    deliveries = [owner.open[position] for position in (1, 2, 3)]
    assert owner.lane.ack(deliveries) == [owner.open[2]]
    assert owner.lane.cursor == Cursor(3)


def test_a_settlement_of_something_that_is_settled_is_refused_and_changes_nothing() -> None:
    owner = Owner()
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    owner.ack(1)
    before = owner.lane.cursor
    assert all(refusals(owner.lane, owner.open[1], owner.now))
    assert owner.lane.cursor == before
    assert owner.next() == [2]


def test_the_claim_of_a_delivery_that_timed_out_is_refused_and_the_new_one_holds() -> None:
    owner = Owner(timeout=30)
    owner.fill(Example(1), up_to=1)
    owner.next()
    first = owner.open[1]
    owner.now = 130
    assert owner.expire() == [first]
    assert all(refusals(owner.lane, first, owner.now))
    owner.write()
    owner.now = 135
    again = stored(1, "retrying", attempts=1, due=135.0)
    owner.write(due=[again], held=held(again))
    assert owner.next() == [1]
    assert all(refusals(owner.lane, first, owner.now))
    owner.ack(1)


def test_the_claim_of_a_consumer_that_left_is_refused() -> None:
    owner = Owner(routes=Routes("round_robin"), ordered=False)
    owner.lane.join("one", [route()])
    owner.fill(Example(1), up_to=1)
    assert owner.routed() == [(1, "one")]
    lost = owner.open[1]
    owner.lane.leave("one")
    owner.lane.join("two", [route()])
    assert owner.routed() == [(1, "two")]
    assert all(refusals(owner.lane, lost, owner.now))
    owner.ack(1)


def test_a_skipped_message_is_done() -> None:
    owner = Owner()
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    assert owner.lane.skip([owner.open[1]]) == []
    assert owner.lane.cursor == Cursor(1)
    assert owner.next() == [2]


def test_a_parked_message_has_its_reason_and_its_row_before_the_cursor_passes() -> None:
    owner = Owner()
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.park(1, reason="no such customer", error="details")
    write = owner.exchange().write
    assert write is not None
    assert write.cursor == Cursor(1)
    (move,) = write.moves
    assert move.row is not None
    assert (move.row.state, move.row.reason, move.row.error) == ("parked", "no such customer", "details")
    assert (move.row.attempts, move.row.due) == (1, None)


def test_a_lane_without_routes_has_no_consumers() -> None:
    owner = Owner()
    with pytest.raises(TypeError, match="no routes"):
        owner.lane.join("one", [route()])


def test_what_a_transaction_settles_is_done_when_it_commits() -> None:
    owner = Owner()
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    exchange = owner.lane.exchange(owner.now, commits=[owner.open[1]])
    assert exchange is not None
    assert exchange.write is not None
    assert exchange.write.cursor == Cursor(1)
    assert owner.next() == []
    owner.lane.exchanged(owner.answer(exchange))
    assert owner.next() == [2]
    assert owner.lane.exchange(owner.now) is None


def test_what_a_transaction_settles_is_open_again_when_it_is_rolled_back() -> None:
    owner = Owner()
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    assert owner.lane.exchange(owner.now, commits=[owner.open[1]]) is not None
    owner.lane.abandon()
    assert owner.lane.cursor == Cursor(0, ((2, 2),)) or owner.lane.cursor == Cursor(0)
    assert owner.next() == []
    owner.retry(1)
    assert owner.states() == {1: "retrying", 2: "waiting"}


def test_what_timed_out_during_a_transaction_that_is_rolled_back_comes_back() -> None:
    owner = Owner(timeout=30)
    owner.fill(Example(1), up_to=1)
    owner.next()
    assert owner.lane.exchange(owner.now, commits=[owner.open[1]]) is not None
    assert owner.expire(131) == []
    owner.lane.abandon()
    assert owner.expire(131) == [owner.open[1]]


def test_a_row_that_a_transaction_settles_must_be_unchanged() -> None:
    owner = Owner(state=start(1, rows=True))
    owner.write(held=held(stored(1, "retrying", due=99.0, revision=4)))
    owner.next()
    exchange = owner.lane.exchange(owner.now, commits=[owner.open[1]])
    assert exchange is not None
    assert exchange.write is not None
    (move,) = exchange.write.moves
    assert (move.position, move.replaces, move.row, move.required) == (1, 4, None, True)


def test_a_transaction_must_not_settle_what_is_no_longer_its_claim() -> None:
    owner = Owner(timeout=1)
    owner.fill(*many(1, 2, "ab"), up_to=2)
    owner.next()
    owner.expire(owner.now + 2)
    before = owner.lane.cursor
    with pytest.raises(ValueError, match="position 1 is no longer in force"):
        owner.lane.exchange(owner.now, commits=[owner.open[1]])
    assert owner.lane.cursor == before


def test_what_consumers_have_is_not_settled_by_a_transaction() -> None:
    owner = Owner(routes=Routes("round_robin"), ordered=False)
    owner.lane.join("one", [route()])
    owner.fill(Example(1), up_to=1)
    owner.routed()
    with pytest.raises(TypeError, match="consumers"):
        owner.lane.exchange(owner.now, commits=[owner.open[1]])


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_extension_is_a_time_to_come(seconds: float) -> None:
    owner = Owner(timeout=30)
    owner.fill(Example(1), up_to=1)
    owner.next()
    with pytest.raises(ValueError, match="more than 0 seconds"):
        owner.lane.extend([owner.open[1]], owner.now, seconds)
    assert owner.expire(owner.now + 30) == [owner.open[1]]


def test_a_page_with_keys_for_some_messages_is_refused() -> None:
    owner = Owner()
    with pytest.raises(ValueError, match="every message has a key"):
        owner.lane.fill(many(1, 3), ["a"], 3)
    with pytest.raises(ValueError, match="every message has a key"):
        owner.lane.fill(many(1, 3), None, 3)
    with pytest.raises(ValueError, match="beyond 2"):
        owner.lane.fill(many(1, 3), ["a"] * 3, 2)
    assert owner.lane.reach == 0


def test_one_exchange_is_under_way_at_a_time() -> None:
    owner = Owner()
    owner.fill(*many(1, 2, "ab"), up_to=2)
    owner.next()
    owner.ack(1)
    exchange = owner.exchange()
    owner.ack(2)
    assert owner.lane.exchange(owner.now) is None
    owner.lane.exchanged(owner.answer(exchange))
    write = owner.exchange().write
    assert write is not None
    assert write.cursor == Cursor(2)


def test_what_is_settled_while_an_exchange_is_under_way_goes_with_the_next() -> None:
    owner = Owner()
    owner.fill(*many(1, 4, "ab"), up_to=4)
    assert owner.next() == [1, 2]
    owner.retry(1)
    exchange = owner.exchange()
    owner.fill(Example(5, key="a"), up_to=5)
    owner.ack(2)
    assert owner.next() == [4]
    owner.ack(4)
    owner.lane.exchanged(owner.answer(exchange))
    assert owner.next() == [5]
    write = owner.exchange().write
    assert write is not None
    assert write.cursor == Cursor(4)


def test_what_comes_while_rows_are_being_written_may_be_held_by_them() -> None:
    owner = Owner()
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    owner.retry(1)
    exchange = owner.exchange()
    owner.fill(Example(3), Example(4, key="b"), up_to=4)
    assert owner.next() == []
    owner.lane.exchanged(owner.answer(exchange))
    assert owner.states() == {3: "waiting"}
    assert owner.next() == [4]


def test_a_transaction_must_not_commit_beside_another_exchange() -> None:
    """It would be neither fenced nor in the cursor: what its handlers wrote would be written again."""
    owner = Owner()
    owner.fill(*many(1, 2, "ab"), up_to=2)
    owner.next()
    owner.lane.ack([owner.open[2]])
    assert owner.lane.exchange(owner.now) is not None
    with pytest.raises(ValueError, match="another exchange is under way"):
        owner.lane.exchange(owner.now, commits=[owner.open[1]])
    assert owner.lane.exchange(owner.now) is None
