"""Order per key: only the lowest unsettled message of a key runs."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dispatch.examples import Example
from dispatch.owner import Owner, held, many, start, stored
from milepost.dispatch import Cursor, DeliveryRow, HeldKey, LimitReached, RowCounts


def test_a_later_message_of_a_key_waits_until_the_earlier_is_settled() -> None:
    owner = Owner()
    owner.fill(*many(1, 4, "ab"), up_to=4)
    assert owner.next() == [1, 2]
    assert owner.next() == []
    owner.ack(2)
    assert owner.next() == [4]
    owner.ack(1)
    assert owner.next() == [3]


def test_the_lowest_position_that_may_run_goes_first() -> None:
    owner = Owner()
    owner.fill(Example(1), Example(2), Example(3, key="b"), up_to=3)
    assert owner.next(limit=1) == [1]
    owner.ack(1)
    assert owner.next() == [2, 3]


def test_without_an_order_nothing_is_held_back() -> None:
    owner = Owner(ordered=False)
    owner.fill(*many(1, 4), up_to=4)
    assert owner.next() == [1, 2, 3, 4]
    owner.retry(1)
    assert owner.states() == {1: "retrying"}
    assert owner.lane.cursor == Cursor(1)


def test_what_waits_behind_a_held_message_gets_a_row_when_the_cursor_passes_it() -> None:
    owner = Owner()
    owner.fill(Example(1), Example(2), Example(3, key="b"), Example(4), up_to=4)
    owner.next()
    owner.retry(1)
    owner.ack(3)
    assert owner.states() == {1: "retrying", 2: "waiting", 4: "waiting"}
    assert owner.lane.cursor == Cursor(4)


def test_nothing_waits_in_the_store_behind_a_message_that_only_takes_long() -> None:
    owner = Owner()
    owner.fill(*many(1, 5), up_to=5)
    assert owner.next() == [1]
    assert owner.lane.exchange(owner.now) is None


def test_a_message_of_a_key_that_a_row_holds_waits_though_nothing_of_it_is_in_memory() -> None:
    owner = Owner(state=start(10, rows=True))
    owner.fill(Example(11), Example(12, key="b"), up_to=12)
    assert owner.next() == []
    assert owner.lane.urgent(owner.now)
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.keys == ("a", "b")
    owner.lane.abandon()
    owner.write(held=held(stored(7, "parked")))
    assert owner.next() == [12]
    assert owner.states() == {11: "waiting"}
    owner.ack(12)
    assert owner.lane.cursor == Cursor(12)


def test_while_no_rows_exist_nothing_is_asked() -> None:
    owner = Owner()
    owner.fill(*many(1, 3, "abc"), up_to=3)
    owner.ack(*owner.next())
    assert owner.exchange().ask is None


def test_the_owner_frees_a_key_when_its_head_is_settled() -> None:
    owner = Owner(state=start(10, rows=True))
    owner.write(held=held(stored(5, "retrying", due=90.0), more=True))
    assert owner.next() == [5]
    owner.ack(5)
    exchange = owner.exchange()
    assert exchange.ask is not None
    assert exchange.ask.keys == ("a",)
    owner.lane.abandon()
    assert owner.states(held=held(stored(6, "waiting"), stored(8, "waiting"))) == {5: None}
    assert owner.next() == [6]
    owner.ack(6)
    assert owner.next() == [8]


def test_after_a_start_a_key_whose_head_is_gone_goes_on() -> None:
    owner = Owner(state=start(10, rows=True))
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.heads_after == ""
    owner.lane.abandon()
    owner.write(held=held(stored(6, "waiting"), stored(8, "waiting")))
    assert owner.next() == [6]


def test_keys_to_go_on_with_are_looked_for_until_there_are_no_more() -> None:
    owner = Owner(state=start(10, rows=True))
    owner.write(held=held(stored(6, "waiting")), heads_end="a")
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.heads_after == "a"
    owner.lane.abandon()
    owner.write(heads_end=None)
    assert owner.lane.exchange(owner.now) is None


def test_new_messages_come_after_the_rows_of_their_key() -> None:
    owner = Owner(state=start(10, rows=True))
    owner.fill(Example(11), up_to=11)
    owner.write(held=held(stored(5, "retrying", due=90.0), stored(6, "waiting")))
    assert owner.next() == [5]
    owner.ack(5)
    assert owner.next() == [6]
    owner.ack(6)
    assert owner.next() == [11]


def test_a_new_message_joins_the_rows_while_its_key_has_more_of_them() -> None:
    owner = Owner(state=start(10, rows=True))
    owner.fill(Example(11), up_to=11)
    owner.write(held=held(stored(5, "retrying", due=90.0), more=True))
    assert owner.next() == [5]
    assert owner.states() == {11: "waiting"}


def test_a_parked_message_holds_its_key_with_on_park_block() -> None:
    owner = Owner(on_park="block")
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    owner.park(1)
    assert owner.next() == []
    assert owner.states() == {1: "parked", 2: "waiting"}


def test_a_parked_message_lets_its_key_go_on_with_on_park_continue() -> None:
    owner = Owner(on_park="continue")
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    owner.park(1)
    assert owner.next() == [2]
    assert owner.states() == {1: "parked"}
    owner.ack(2)
    assert owner.lane.cursor == Cursor(2)


def test_under_continue_a_retried_message_holds_its_key_again_until_settled() -> None:
    owner = Owner(on_park="continue", state=start(10, rows=True))
    owner.fill(*many(11, 13), up_to=13)
    owner.write()
    assert owner.next() == [11]
    owner.lane.poke()
    retried = stored(5, "retrying", due=99.0)
    owner.write(due=[retried], held=held(retried))
    owner.ack(11)
    assert owner.next() == []
    owner.write(held=held(retried))
    assert owner.next() == [5]
    owner.ack(5)
    assert owner.next() == [12]


def test_when_a_person_skips_the_head_its_key_goes_on() -> None:
    owner = Owner(state=start(10, rows=True))
    skipped = stored(5, "skipped", due=99.0)
    owner.write(due=[skipped], held=held(stored(6, "waiting")))
    assert owner.next() == [6]
    rows = owner.write()
    assert rows[5] is not None
    assert rows[5].due is None


def test_a_row_that_is_due_behind_another_waits_and_is_not_found_again() -> None:
    owner = Owner(state=start(10, rows=True))
    first, second = stored(5, "parked"), stored(6, "retrying", due=99.0)
    owner.write(due=[second], held=held(first, second))
    assert owner.next() == []
    assert owner.states() == {6: "waiting"}


def test_at_max_waiting_the_cursor_stops_and_the_key_is_named() -> None:
    owner = Owner(max_waiting=1)
    owner.fill(*many(1, 3), up_to=3)
    owner.next()
    owner.retry(1)
    assert owner.states(counts=RowCounts(waiting=1, retrying=1)) == {1: "retrying", 2: "waiting"}
    assert owner.lane.cursor == Cursor(2)
    assert owner.lane.exchange(owner.now) is None
    assert owner.lane.stopped == LimitReached(limit="max_waiting", most=1, rows=1, key="a")


def test_when_on_park_becomes_continue_what_waited_behind_parked_messages_goes_on() -> None:
    owner = Owner(state=start(10, rows=True))
    owner.write()
    assert owner.lane.exchange(owner.now) is None
    owner.lane.change(replace(owner.settings, on_park="continue"))
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.heads_after == ""


def test_when_on_park_becomes_block_keys_are_looked_up_again() -> None:
    owner = Owner(on_park="continue", state=start(10, rows=True))
    owner.fill(Example(11), up_to=11)
    owner.write()
    owner.lane.change(replace(owner.settings, on_park="block"))
    assert owner.next() == []
    owner.write(held=held(stored(5, "parked")))
    assert owner.next() == []


def parked_before_it_blocks() -> Owner:
    """The first of three was parked, which is not written yet, and from now on it holds up the others."""
    owner = Owner(on_park="continue")
    owner.fill(Example(1))
    owner.next()
    owner.park(1)
    owner.lane.change(replace(owner.settings, on_park="block"))
    owner.fill(*many(2, 3))
    return owner


def test_when_on_park_becomes_block_what_was_parked_just_before_holds_its_key() -> None:
    owner = parked_before_it_blocks()
    assert owner.states(rows=True, counts=RowCounts()) == {1: "parked"}
    assert owner.next() == []
    assert owner.states(rows=True) == {2: "waiting", 3: "waiting"}


def test_when_on_park_becomes_block_what_comes_back_waits_behind_what_was_parked() -> None:
    owner = parked_before_it_blocks()
    assert owner.next() == [2]
    assert owner.states(rows=True) == {1: "parked"}
    owner.lane.give_back([owner.open[2]])
    assert owner.next() == []
    owner.write(rows=True, held=held(stored(1, "parked")))
    assert owner.states(rows=True) == {2: "waiting", 3: "waiting"}


def test_an_order_cannot_be_changed_while_it_runs() -> None:
    owner = Owner()
    with pytest.raises(ValueError, match="`reorder`"):
        owner.lane.change(replace(owner.settings, ordered=False))


def test_another_order_holds_for_what_is_not_out() -> None:
    owner = Owner(ordered=False)
    owner.fill(*many(1, 6, ("b", "a")))
    assert owner.next(3) == [1, 2, 3]
    reorder(owner)
    # Of each key one or two are out.
    assert owner.next() == []
    owner.ack(1)
    assert owner.next() == []
    owner.ack(2, 3)
    owner.write(rows=False)
    assert owner.next() == [4, 5]
    owner.ack(4, 5)
    assert owner.next() == [6]


def test_without_an_order_all_goes_out() -> None:
    owner = Owner()
    owner.fill(*many(1, 4))
    assert owner.next() == [1]
    reorder(owner, ordered=False)
    assert owner.next() == [2, 3, 4]
    owner.ack(1, 2, 3, 4)
    assert owner.lane.cursor == Cursor(4)


def test_what_is_out_when_the_order_changes_and_comes_back_goes_before_later_ones() -> None:
    owner = Owner(ordered=False)
    owner.fill(*many(1, 3))
    assert owner.next(2) == [1, 2]
    reorder(owner)
    owner.lane.give_back([owner.open[2], owner.open[1]])
    owner.write(rows=False)
    assert owner.next() == [1]
    owner.retry(1, after=0)
    assert owner.states(rows=True, next_due=owner.now) == {1: "retrying", 2: "waiting", 3: "waiting"}


def test_rows_that_are_here_get_their_keys_from_the_store() -> None:
    owner = Owner(ordered=False, state=start(2, rows=True))
    owner.write(due=[stored(1, "retrying", key=None), stored(2, "retrying", key=None)])
    assert owner.lane.stored_rows == {1: 1, 2: 1}
    assert owner.next(1) == [1]
    by_now = [stored(position, "retrying", revision=2).row for position in (1, 2)]
    reorder(owner, rows={row.position: row for row in by_now})
    owner.ack(1)
    exchange = owner.exchange()
    assert exchange.write is not None
    assert [(move.position, move.replaces, move.row) for move in exchange.write.moves] == [(1, 2, None)]


def test_an_order_is_not_changed_while_something_is_written() -> None:
    owner = Owner()
    owner.fill(*many(1, 2))
    owner.next()
    owner.ack(1)
    owner.exchange()
    with pytest.raises(ValueError, match="exchange is under way"):
        reorder(owner, ordered=False)


def reorder(owner: Owner, *, ordered: bool = True, rows: Mapping[int, DeliveryRow] | None = None) -> None:
    owner.settings = replace(owner.settings, ordered=ordered)
    owner.lane.reorder(owner.settings, lambda message: message.stream if ordered else None, rows or {})


def test_many_rows_of_a_key_are_loaded_in_parts() -> None:
    owner = Owner(state=start(10, rows=True))
    rows = [stored(position, "waiting") for position in range(1, 6)]
    owner.write(held={"a": HeldKey(rows[:2], more=True)})
    assert owner.next() == [1]
    owner.ack(1)
    assert owner.next() == [2]
    owner.ack(2)
    assert owner.next() == []
    assert owner.states(held={"a": HeldKey(rows[2:], more=False)}) == {1: None, 2: None}
    assert owner.next() == [3]
