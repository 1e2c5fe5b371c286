"""After an owner vanished: each message has its row before it starts, and what kills its process is found."""

from typing import Any

import pytest

from dispatch.examples import Example
from dispatch.owner import Owner, held, many, start, stored
from milepost.dispatch import (
    Cursor,
    DeliveryRow,
    ExchangeAnswer,
    LoadedRow,
    Retry,
    Route,
    Routes,
    State,
    Suspicion,
)
from milepost.dispatch.retry import PROCESS_VANISHED_REASON, RUNS_ALONE_REASON

POSSIBLE, CERTAIN = Suspicion.POSSIBLE, Suspicion.CERTAIN


def suspecting(running: LoadedRow[Example], **settings: Any) -> Owner:
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


def test_what_was_running_when_a_process_vanished_runs_alone_and_its_row_says_so() -> None:
    running = [stored(position, "running", key=key) for position, key in ((1, "a"), (2, "b"))]
    owner = Owner(state=start(2, unclean=True, rows=True, running=running))
    owner.fill(Example(3, key="c"), up_to=3)
    owner.write(held={**held(running[0]), **held(running[1])})
    assert owner.lane.suspects
    assert owner.next() == []
    rows = owner.write()
    assert list(rows) == [1]
    assert rows[1] is not None
    assert (rows[1].state, rows[1].attempts, rows[1].reason) == ("running", 0, RUNS_ALONE_REASON)
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


@pytest.mark.parametrize("reason", [RUNS_ALONE_REASON, PROCESS_VANISHED_REASON])
def test_what_a_program_says_of_a_failure_makes_nobody_suspect(reason: str) -> None:
    owner = Owner()
    owner.fill(Example(1), up_to=1)
    owner.next()
    owner.retry(1, reason=reason, after=0)
    row = written(owner, 1)
    assert (row.reason, row.suspicion) == (reason, None)
    owner.write(held=held(stored(1, "retrying", attempts=1, reason=reason, due=90.0)))
    assert not owner.lane.suspects


def written(owner: Owner, position: int) -> DeliveryRow:
    """What an exchange makes of a row."""
    row = owner.write()[position]
    assert row is not None
    return row


def blaming(running: LoadedRow[Example], **settings: Any) -> Owner:
    """An owner that finds what ran alone when its process vanished."""
    return Owner(state=start(1, unclean=True, rows=True, running=[running]), **settings)


def test_what_ran_alone_when_its_process_vanished_failed_then_and_the_time_before() -> None:
    owner = blaming(stored(1, "running", suspicion=POSSIBLE))
    assert [entry.position for entry in owner.lane.blamed] == [1]
    # It is to be written though nothing else happens.
    assert owner.lane.settled == 1
    row = written(owner, 1)
    assert (row.state, row.attempts, row.total, row.reason) == ("retrying", 2, 2, PROCESS_VANISHED_REASON)
    # It waits as after any other second attempt.
    assert row.due == owner.now + 10


def test_each_time_it_ends_its_process_again_counts_once_until_it_is_parked() -> None:
    again = blaming(
        stored(1, "running", attempts=2, total=2, suspicion=CERTAIN), retry=Retry(attempts=4, jitter=0)
    )
    row = written(again, 1)
    assert (row.state, row.attempts, row.due) == ("retrying", 3, again.now + 20)
    last = blaming(stored(1, "running", attempts=3, total=3, suspicion=CERTAIN), retry=Retry(attempts=4))
    row = written(last, 1)
    assert (row.state, row.attempts, row.reason, row.due) == ("parked", 4, PROCESS_VANISHED_REASON, None)


def test_without_a_process_that_vanished_nothing_is_blamed() -> None:
    """The lane was lost and comes back, or its owner left in good order."""
    running = stored(1, "running", suspicion=POSSIBLE)
    owner = Owner(state=start(1, rows=True, running=[running]))
    owner.write(held=held(running))
    assert (owner.lane.suspects, owner.lane.blamed) == (True, [])


@pytest.mark.parametrize("key", ["a", None])
@pytest.mark.parametrize("state", ["retrying", "waiting"])
def test_when_its_time_comes_it_runs_alone_again(key: str | None, state: str) -> None:
    owner = Owner(state=start(2, rows=True), ordered=key is not None)
    due = 90.0 if state == "retrying" else None
    found = stored(1, state, key=key, attempts=2, total=2, suspicion=CERTAIN, due=due)
    owner.write(**({"held": held(found)} if key else {"due": [found]}))
    assert owner.lane.suspects
    assert owner.next() == []
    row = written(owner, 1)
    assert (row.state, row.attempts, row.suspicion) == ("running", 2, CERTAIN)
    assert owner.next() == [1]
    assert (owner.open[1].alone, owner.open[1].attempt) == (True, 3)


def test_while_it_waits_others_go_on_and_those_of_its_key_do_not() -> None:
    owner = blaming(stored(1, "running", suspicion=POSSIBLE), probation=0)
    owner.fill(Example(2, key="a"), Example(3, key="b"), up_to=3)
    assert not owner.lane.suspects
    assert owner.next() == []
    owner.write(held=held(stored(1, "retrying", attempts=2, suspicion=CERTAIN, due=110.0)))
    assert owner.next() == [3]


def test_it_may_be_parked_at_once_and_its_key_goes_on() -> None:
    owner = blaming(stored(1, "running", suspicion=POSSIBLE), retry=Retry.never, on_park="continue", probation=0)
    owner.fill(Example(2, key="a"), up_to=2)
    assert written(owner, 1).state == "parked"
    assert owner.next() == [2]


def test_a_suspect_that_fails_is_as_any_other_from_then_on() -> None:
    owner = Owner(state=start(2, rows=True))
    owner.write(held=held(stored(1, "retrying", attempts=2, suspicion=CERTAIN, due=90.0)))
    owner.next()
    owner.write()
    assert owner.next() == [1]
    owner.retry(1, reason="failed", after=0)
    row = written(owner, 1)
    assert (row.attempts, row.reason, row.suspicion) == (3, "failed", None)
    assert not owner.lane.suspects


def routed(running: LoadedRow[Example], strategy: str = "round_robin") -> Owner:
    """An owner with consumers, that has found a row which said `running`."""
    routes: Routes[Example] = Routes(strategy, lambda message: message.position)
    state = start(1, unclean=True, rows=True, running=[running])
    return Owner(state=state, ordered=False, routes=routes, probation=0)


def test_a_suspect_that_nobody_wants_is_one_when_somebody_does() -> None:
    owner = routed(stored(1, "running", key=None))
    owner.lane.join("one", [Route("Size == 2")])
    owner.next()
    row = written(owner, 1)
    assert (row.state, row.suspicion) == ("unrouted", POSSIBLE)
    owner.fill(Example(2, Size=2), up_to=2)
    assert owner.next() == [2]
    owner.lane.join("two", [Route(None)])
    owner.next()
    owner.write(unrouted=[LoadedRow(row, Example(1))])
    # The other one is out: it waits until it can be alone, and its row does not say before that it is.
    assert owner.next() == []
    assert (owner.lane.suspects, owner.lane.in_flight) == (True, 1)
    owner.ack(2)
    owner.next()
    assert written(owner, 1).suspicion == POSSIBLE
    assert owner.next() == [1]
    assert owner.open[1].alone


def test_a_suspect_whose_consumer_pauses_is_one_when_it_goes_on() -> None:
    owner = routed(stored(1, "running", key=None, attempts=2, reason=""))
    owner.lane.join("one", [Route(None, capacity=0)])
    owner.next()
    assert written(owner, 1).suspicion == POSSIBLE


def test_a_suspect_that_is_pinned_to_one_who_pauses_while_others_go_on_is_as_any_other() -> None:
    """It would be brought back at once, again and again, and stop everything else each time."""
    owner = routed(stored(1, "running", key=None), "pinned")
    owner.lane.join("one", [Route(None, capacity=0)])
    owner.next()
    row = written(owner, 1)
    owner.lane.join("two", [Route(None, capacity=1)])
    for _ in range(10):
        owner.next()
        exchange = owner.lane.exchange(owner.now)
        if exchange is None:
            break
        moves = exchange.write.moves if exchange.write else ()
        row = next((move.row for move in moves if move.row), row)
        found = [] if row.state is not State.UNROUTED or exchange.ask is None else [LoadedRow(row, Example(1))]
        owner.lane.exchanged(owner.answer(exchange, unrouted=found))
    assert not owner.lane.suspects
    assert owner.lane.exchange(owner.now) is None


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


def test_a_clean_release_leaves_a_suspect_that_was_not_settled_as_it_was() -> None:
    owner = suspecting(stored(1, "running", attempts=1))
    owner.next()
    owner.write()
    assert owner.next() == [1]
    owner.lane.close()
    row = written(owner, 1)
    assert (row.state, row.attempts, row.suspicion) == ("retrying", 1, POSSIBLE)


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
    owner.lane.exchanged(ExchangeAnswer(moved=[False]))
    assert owner.next() == []
    ask = owner.exchange().ask
    assert ask is not None
    assert ask.keys == ("a",)
