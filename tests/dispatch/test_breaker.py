"""The circuit breaker: a bad deploy does not turn the log into rows."""

from typing import Any

import pytest

from dispatch.owner import Owner, many, start
from milepost.dispatch import AttemptTally, Breaker, Retry, RowCounts
from milepost.dispatch.breaker import breaker_state_after


def failing(stall_after: int = 3, **settings: Any) -> Owner:
    """An owner whose last attempts have just failed."""
    owner = Owner(stall_after=stall_after, ordered=False, **settings)
    owner.fill(*many(1, 10), up_to=10)
    owner.next(limit=stall_after)
    owner.retry(*range(1, stall_after + 1))
    return owner


def test_when_the_last_attempts_all_failed_it_stalls_and_says_why() -> None:
    owner = failing()
    assert owner.breaker.stalled == "the last 3 attempts failed"


def test_attempts_that_ended_as_parked_or_timed_out_count_too() -> None:
    owner = Owner(stall_after=3, ordered=False, timeout=30)
    owner.fill(*many(1, 10), up_to=10)
    owner.next(limit=3)
    owner.park(1)
    owner.retry(2)
    assert owner.breaker.stalled is None
    owner.expire(130)
    assert owner.breaker.stalled is not None


def test_a_success_in_between_starts_the_count_anew() -> None:
    owner = Owner(stall_after=3, ordered=False)
    owner.fill(*many(1, 10), up_to=10)
    owner.next(limit=6)
    owner.retry(1, 2)
    owner.ack(3)
    owner.retry(4, 5)
    assert owner.breaker.stalled is None
    owner.retry(6)
    assert owner.breaker.stalled is not None


def test_a_retry_that_does_not_count_is_no_failure() -> None:
    owner = Owner(stall_after=1, ordered=False)
    owner.fill(*many(1, 2), up_to=2)
    owner.next()
    owner.retry(1, count=False, after=5)
    assert owner.breaker.stalled is None


def test_more_retrying_than_allowed_stalls_at_the_next_failure() -> None:
    owner = Owner(stall_after=100, ordered=False)
    owner.fill(*many(1, 10), up_to=10)
    owner.next(limit=3)
    owner.retry(1)
    owner.write(counts=RowCounts(retrying=101), streak=1)
    assert owner.breaker.stalled is None
    owner.retry(2)
    assert owner.breaker.stalled == "101 messages are retrying, more than 100"


def test_while_stalled_nothing_is_read() -> None:
    owner = failing()
    assert owner.lane.room() == 0


def test_while_stalled_one_message_at_a_time_is_tried_at_the_pace_of_the_first_retry() -> None:
    owner = failing(retry=Retry(delay=5, jitter=0))
    assert owner.next() == []
    assert owner.lane.wake_at() == 105
    owner.now = 105
    assert owner.next() == [4]
    assert owner.next() == []
    owner.retry(4)
    assert owner.next() == []
    owner.now = 110
    assert owner.next() == [5]


def test_the_first_success_ends_it() -> None:
    owner = failing()
    owner.now = 105
    assert owner.next() == [4]
    owner.ack(4)
    assert owner.breaker.stalled is None
    assert owner.next() == [5, 6, 7, 8, 9, 10]


def test_a_probe_that_is_given_back_is_tried_again() -> None:
    owner = failing()
    owner.now = 105
    assert owner.next() == [4]
    owner.lane.give_back([owner.open[4]])
    assert owner.next() == [4]


def test_an_empty_lane_that_is_stalled_reads_one_message_to_try() -> None:
    owner = Owner(state=start(stalled="the last 1,000 attempts failed", streak=1000))
    assert owner.lane.room() == 1
    owner.fill(*many(1, 5, "abcde"), up_to=5)
    assert owner.lane.reach == 1


def test_its_state_is_the_subscriptions_and_comes_from_the_store() -> None:
    owner = Owner(state=start(stalled="the last 1,000 attempts failed", streak=1000))
    assert owner.breaker.stalled == "the last 1,000 attempts failed"
    owner.fill(*many(1, 1), up_to=1)
    assert owner.next() == [1]
    owner.ack(1)
    write = owner.exchange().write
    assert write is not None
    assert write.tally == AttemptTally(succeeded=1)


def test_a_success_elsewhere_ends_it_here() -> None:
    owner = failing()
    owner.write(streak=3, stalled="the last 3 attempts failed")
    assert owner.breaker.stalled is not None
    owner.now = 105
    owner.ack(*owner.next())
    owner.write(streak=0, stalled=None)
    assert owner.breaker.stalled is None


def test_lanes_of_a_subscription_share_it() -> None:
    breaker = Breaker(3, 5)
    one, two = (Owner(breaker=breaker, stall_after=3, ordered=False) for _ in range(2))
    for owner in (one, two):
        owner.fill(*many(1, 5), up_to=5)
    one.next(limit=2)
    two.next(limit=1)
    one.retry(1, 2)
    two.retry(1)
    assert one.breaker.stalled is not None
    one.now = two.now = 105
    assert (one.next(), two.next()) == ([3], [])


@pytest.mark.parametrize(
    ("before", "tally", "retrying", "after"),
    [
        ((0, None), AttemptTally(0, 2), 2, (2, None)),
        ((2, None), AttemptTally(0, 1), 3, (3, "the last 3 attempts failed")),
        ((2, None), AttemptTally(5, 1), 3, (1, None)),
        ((9, "why"), AttemptTally(1, 0), 3, (0, None)),
        ((9, "why"), AttemptTally(0, 0), 3, (9, "why")),
        ((0, None), AttemptTally(1, 1), 4, (1, "4 messages are retrying, more than 3")),
        ((0, None), AttemptTally(1, 0), 4, (0, None)),
    ],
)
def test_what_is_stored_after_a_write(
    before: tuple[int, str | None], tally: AttemptTally, retrying: int, after: tuple[int, str | None]
) -> None:
    assert breaker_state_after(*before, tally, retrying, 3) == after
