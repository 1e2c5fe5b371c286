"""Attempts: what counts, how long it waits, and when a message is parked."""

from dispatch.examples import Example
from dispatch.owner import Owner, held, many, start, stored
from milepost.dispatch import Cursor, DeliveryRow, ExchangeAnswer, Retry, State
from milepost.dispatch.retry import attempted_row, waiting_row


def failed(owner: Owner, position: int) -> DeliveryRow:
    row = owner.write()[position]
    assert row is not None
    return row


def test_a_failed_message_waits_as_the_policy_says_and_has_its_row_before_the_cursor_passes() -> None:
    owner = Owner(retry=Retry(delay=5, jitter=0))
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.retry(1, reason="ValueError", error="traceback")
    write = owner.exchange().write
    assert write is not None
    assert write.cursor == Cursor(1)
    (move,) = write.moves
    assert move.replaces is None
    assert move.row == DeliveryRow(
        position=1,
        key="a",
        state=State.RETRYING,
        since=100,
        attempts=1,
        total=1,
        due=105,
        reason="ValueError",
        error="traceback",
        size=100,
    )


def test_jitter_is_passed_in() -> None:
    owner = Owner(retry=Retry(delay=10, jitter=0.5), chance=0.0)
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.retry(1)
    assert failed(owner, 1).due == 105


def test_a_message_comes_back_when_it_is_due_and_not_before() -> None:
    owner = Owner()
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.retry(1)
    row = failed(owner, 1)
    assert owner.lane.wake_at() == 105
    assert not owner.lane.urgent(104.9)
    owner.now = 105
    assert owner.lane.urgent(owner.now)
    again = stored(1, "retrying", attempts=1, due=row.due)
    owner.write(due=[again], held=held(again))
    assert owner.next() == [1]
    assert owner.open[1].attempt == 2


def test_at_the_limit_it_is_parked() -> None:
    owner = Owner(retry=Retry(attempts=3), state=start(1, rows=True))
    owner.write(held=held(stored(1, "retrying", attempts=2, due=99.0)))
    assert owner.next() == [1]
    owner.retry(1, reason="again")
    row = failed(owner, 1)
    assert (row.state, row.attempts, row.due, row.reason) == ("parked", 3, None, "again")


def test_a_rule_for_an_exception_decides() -> None:
    owner = Owner(retry=Retry(rules={ValueError: Retry.never}))
    owner.fill(*many(1, 2, "ab"), up_to=2)
    owner.next()
    owner.retry(1, cause=UnicodeError)
    owner.retry(2, cause=KeyError)
    assert owner.states() == {1: "parked", 2: "retrying"}


def test_retry_after_so_many_seconds_goes_before_the_policy_and_counts() -> None:
    owner = Owner()
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.retry(1, after=60)
    row = failed(owner, 1)
    assert (row.due, row.attempts) == (160, 1)


def test_a_retry_that_does_not_count_knows_no_limit() -> None:
    owner = Owner(retry=Retry.never)
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.retry(1, after=60, count=False)
    row = failed(owner, 1)
    assert (row.state, row.due, row.attempts, row.total) == ("retrying", 160, 0, 0)


def test_who_waits_for_somebody_else_is_parked_when_its_time_is_over() -> None:
    row = DeliveryRow(position=1, key="a", state=State.RETRYING, since=100)
    first = waiting_row(row, 100, 10, 600)
    assert (first.state, first.due, first.waits_since) == ("retrying", 110, 100)
    later = waiting_row(attempted_row(first, 695, more=0), 695, 10, 600)
    assert (later.state, later.due, later.waits_since, later.attempts) == ("retrying", 700, 100, 0)
    last = waiting_row(attempted_row(later, 700, more=0), 700, 10, 600)
    assert (last.state, last.due, last.attempts) == ("parked", None, 0)
    # An attempt means that it could be read.
    assert attempted_row(later, 700).waits_since is None


def test_what_is_given_back_goes_out_again_at_once_and_counts_nothing() -> None:
    owner = Owner()
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    assert owner.lane.give_back([owner.open[1]]) == []
    assert owner.next() == [1]
    assert owner.open[1].attempt == 1
    assert owner.lane.exchange(owner.now) is None


def test_a_time_out_is_an_attempt() -> None:
    owner = Owner(timeout=30)
    owner.fill(Example(1), up_to=1)
    owner.next()
    assert owner.lane.wake_at() == 130
    assert owner.expire(129.9) == []
    owner.now = 130
    assert owner.expire() == [owner.open[1]]
    row = failed(owner, 1)
    assert (row.state, row.attempts, row.reason) == ("retrying", 1, "timed out")


def test_extending_moves_the_time_out() -> None:
    owner = Owner(timeout=30)
    owner.fill(Example(1), up_to=1)
    owner.next()
    assert owner.lane.extend([owner.open[1]], 120, 30) == []
    assert owner.expire(149.9) == []
    assert owner.expire(150) == [owner.open[1]]


def test_the_time_outs_of_settled_messages_take_no_memory() -> None:
    owner = Owner(timeout=30, ordered=False)
    for position in range(1, 2000):
        owner.fill(Example(position), up_to=position)
        owner.ack(*owner.next())
    assert len(owner.lane._claims._deadlines) < 200


def test_a_persons_retry_starts_the_count_anew_and_keeps_the_total() -> None:
    owner = Owner(state=start(1, rows=True))
    owner.write(held=held(stored(1, "retrying", attempts=0, total=11, due=99.0)))
    owner.next()
    assert owner.open[1].attempt == 1
    owner.retry(1)
    row = failed(owner, 1)
    assert (row.attempts, row.total, row.state) == (1, 12, "retrying")


def test_a_replaced_row_names_the_revision_it_replaces() -> None:
    owner = Owner(state=start(1, rows=True))
    owner.write(held=held(stored(1, "retrying", due=99.0, revision=7)))
    owner.next()
    owner.retry(1)
    write = owner.exchange().write
    assert write is not None
    (move,) = write.moves
    assert move.replaces == 7
    assert move.row is not None
    assert move.row.revision == 8


def test_a_person_who_was_faster_wins() -> None:
    owner = Owner(state=start(1, rows=True))
    owner.write(held=held(stored(1, "retrying", due=99.0)))
    owner.next()
    owner.retry(1)
    owner.exchange()
    owner.lane.exchanged(ExchangeAnswer(moved=[False]))
    assert owner.lane.urgent(owner.now)
    assert owner.next() == []


def test_a_message_that_a_person_skips_while_it_runs_stays_skipped() -> None:
    owner = Owner(state=start(1, rows=True))
    owner.fill(Example(2), up_to=2)
    owner.write(held=held(stored(1, "retrying", due=99.0)))
    assert owner.next() == [1]
    owner.lane.poke()
    skipped = stored(1, "skipped", due=100.0, revision=2)
    owner.write(due=[skipped])
    assert owner.next() == []
    owner.retry(1)
    assert owner.next() == [2]
    rows = owner.write()
    assert rows[1] is not None
    assert (rows[1].state, rows[1].due, rows[1].revision) == ("skipped", None, 3)
