"""After an owner vanished: each message has its row before it starts, and what kills its process is found."""

from typing import Any

from dispatch.examples import Example
from dispatch.owner import Owner, held, many, start, stored
from milepost.dispatch import Answer, Cursor, Loaded, Retry


def suspecting(running: Loaded[Example], **settings: Any) -> Owner:
    """An owner that has found a row which said `running`."""
    owner = Owner(state=start(1, unclean=True, rows=True, running=[running]), **settings)
    owner.write(held=held(running))
    return owner


def test_a_suspect_waits_for_what_is_before_it_in_its_key() -> None:
    running, retried = stored(2, "running"), stored(1, "retrying", due=99.0)
    owner = Owner(on_park="continue", state=start(2, unclean=True, rows=True, running=[running]), probation=0)
    owner.write(due=[retried], held=held(retried, running))
    owner.next()
    owner.write()
    assert owner.next() == [1]
    owner.ack(1)
    owner.next()
    owner.write()
    assert owner.next() == [2]


def test_after_an_unclean_take_over_a_message_has_its_row_before_it_starts() -> None:
    owner = Owner(state=start(unclean=True))
    owner.fill(*many(1, 3, "ab"), up_to=3)
    assert owner.next() == []
    assert owner.lane.urgent(owner.now)
    assert owner.states() == {1: "running", 2: "running"}
    assert owner.next() == [1, 2]
    assert [owner.open[position].attempt for position in (1, 2)] == [1, 1]
    owner.ack(1, 2)
    assert owner.next() == []
    assert owner.states() == {1: None, 2: None, 3: "running"}
    assert owner.next() == [3]


def test_what_is_promised_counts_against_the_limit() -> None:
    owner = Owner(state=start(unclean=True), ordered=False)
    owner.fill(*many(1, 5), up_to=5)
    assert owner.next(limit=2) == owner.next(limit=2) == []
    assert owner.states() == {1: "running", 2: "running"}
    assert owner.next(limit=2) == [1, 2]


def test_probation_ends_after_as_many_messages_as_may_have_been_started() -> None:
    owner = Owner(state=start(unclean=True), probation=2)
    owner.fill(*many(1, 3, "abc"), up_to=3)
    assert owner.next() == [3]
    assert owner.states() == {1: "running", 2: "running"}


def test_a_clean_start_writes_nothing_before_messages_start() -> None:
    owner = Owner(state=start(unclean=False))
    owner.fill(Example(1), up_to=1)
    assert owner.next() == [1]


def test_rows_of_before_are_on_probation_too_and_later_ones_are_not() -> None:
    owner = Owner(state=start(9, unclean=True, rows=True), probation=0, ordered=False)
    before, after = (stored(position, "retrying", key=None, due=99.0) for position in (1, 2))
    after = stored(2, "retrying", key=None, due=99.0, since=100.5)
    owner.write(due=[before, after])
    assert owner.next() == [2]
    assert owner.states() == {1: "running"}
    assert owner.next() == [1]


def test_what_was_running_when_a_process_vanished_runs_alone_and_counts_when_it_starts() -> None:
    running = [stored(position, "running", key=key) for position, key in ((1, "a"), (2, "b"))]
    owner = Owner(state=start(2, unclean=True, rows=True, running=running))
    owner.fill(Example(3, key="c"), up_to=3)
    owner.write(held={**held(running[0]), **held(running[1])})
    assert owner.lane.suspects
    assert owner.next() == []
    rows = owner.write()
    assert list(rows) == [1]
    assert rows[1] is not None
    assert (rows[1].state, rows[1].attempts) == ("running", 1)
    assert owner.next() == [1]
    assert owner.open[1].alone
    assert owner.open[1].attempt == 1
    assert owner.next() == []
    owner.ack(1)
    assert owner.next() == []
    assert owner.states() == {1: None, 2: "running"}
    assert owner.next() == [2]
    owner.ack(2)
    assert not owner.lane.suspects


def test_a_suspect_that_fails_is_counted_once() -> None:
    owner = suspecting(stored(1, "running"))
    owner.next()
    owner.write()
    assert owner.next() == [1]
    owner.retry(1)
    row = owner.write()[1]
    assert row is not None
    assert (row.state, row.attempts) == ("retrying", 1)


def test_a_message_that_kills_its_process_is_parked_after_its_attempts() -> None:
    owner = suspecting(stored(1, "running", attempts=3), retry=Retry(attempts=3))
    assert owner.next() == []
    # It is to be written though nothing else may happen.
    assert owner.lane.settled == 1
    assert [entry.position for entry in owner.lane.given_up] == [1]
    row = owner.write()[1]
    assert row is not None
    assert (row.state, row.attempts) == ("parked", 3)
    assert "vanished" in row.reason


def test_a_clean_release_counts_nothing_and_leaves_nothing_running() -> None:
    owner = Owner(state=start(unclean=True))
    owner.fill(*many(1, 2, "ab"), up_to=2)
    owner.next()
    owner.write()
    assert owner.next() == [1, 2]
    owner.ack(2)
    owner.lane.close()
    rows = owner.write()
    assert rows[2] is None
    assert rows[1] is not None
    assert (rows[1].state, rows[1].attempts, rows[1].due) == ("retrying", 0, 100)
    assert owner.lane.ack([owner.open[1]]) == [owner.open[1]]


def test_a_clean_release_uncounts_a_suspect_that_was_not_settled() -> None:
    owner = suspecting(stored(1, "running", attempts=1))
    owner.next()
    owner.write()
    assert owner.next() == [1]
    owner.lane.close()
    row = owner.write()[1]
    assert row is not None
    assert (row.state, row.attempts) == ("retrying", 1)


def test_a_suspect_that_did_not_run_stays_one_over_a_clean_release() -> None:
    owner = Owner(state=start(1, unclean=True, rows=True, running=[stored(1, "running")]))
    owner.lane.close()
    assert owner.lane.exchange(owner.now) is None


def test_a_release_writes_the_cursor_and_passes_nothing_open() -> None:
    owner = Owner()
    owner.fill(*many(1, 3, "abc"), up_to=3)
    owner.next()
    owner.ack(1, 3)
    owner.lane.close()
    write = owner.exchange().write
    assert write is not None
    assert write.cursor == Cursor(1, ((3, 3),))
    assert write.moves == []
    assert owner.next() == []


def test_with_tracking_of_all_every_message_has_its_row_before_it_starts() -> None:
    owner = Owner(track_all=True)
    owner.fill(Example(1), up_to=1)
    assert owner.next() == []
    assert owner.states() == {1: "running"}
    assert owner.next() == [1]
    owner.ack(1)
    assert owner.states() == {1: None}


def test_a_person_may_change_a_row_before_it_starts() -> None:
    owner = Owner(state=start(9, unclean=True, rows=True))
    owner.write(held=held(stored(1, "retrying", due=99.0)))
    assert owner.next() == []
    owner.exchange()
    owner.lane.exchanged(Answer(moved=[False]))
    assert owner.next() == []
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.keys == ("a",)
