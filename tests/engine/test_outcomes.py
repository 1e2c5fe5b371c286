"""What a handler may raise, and the other small values that users write."""

import math
from typing import Any

import pytest

from engine.shop import context
from milepost.engine.declare.declaration import Checkpoint
from milepost.engine.declare.outcomes import Failed, Park, RetryLater, Skip
from milepost.errors import AlreadyExists, ConsumerClosed, DeclaredInCode, Lost, MilepostError, UnknownSubscription


def test_outcomes_carry_their_reason() -> None:
    assert Park("no such customer").reason == str(Park("no such customer")) == "no such customer"
    assert (Skip().reason, Skip("a test order").reason) == ("", "a test order")
    later = RetryLater(60, count=False, reason="rate limit")
    assert (later.seconds, later.count, later.reason, str(later)) == (60, False, "rate limit", "rate limit")
    assert (RetryLater(0).seconds, RetryLater(0).count, str(RetryLater(1.5))) == (0, True, "again in 1.5 s")


def test_an_exception_may_be_the_reason() -> None:
    assert Park(ValueError("no such customer")).reason == "no such customer"  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", [Park, Skip, RetryLater, Failed])
def test_outcomes_are_no_errors_of_milepost(outcome: type[Exception]) -> None:
    assert issubclass(outcome, Exception)
    assert not issubclass(outcome, MilepostError)


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, "5", None, True])
def test_a_wait_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="^RetryLater: seconds: a number of seconds, at least 0, is wanted, not "):
        RetryLater(seconds)


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 10**30, pytest.param(10**5000, id="huge")])
def test_a_wait_that_never_ends_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="^RetryLater: seconds: at most 3,162,240,000 seconds, a hundred years"):
        RetryLater(seconds)


def test_failed_names_the_messages_of_a_batch() -> None:
    wrong = ValueError("wrong")
    assert Failed({3: wrong, 5: Park("why")}).errors[3] is wrong
    assert str(Failed({3: wrong, 5: Park("why")})) == "3: ValueError('wrong'); 5: Park('why')"


@pytest.mark.parametrize(
    ("errors", "problem"),
    [
        ({}, "Failed: at least one message has to be named; if none failed, the handler returns"),
        ([3], "Failed: {position: exception, …} is wanted, not [3]"),
        ({"3": ValueError()}, "Failed: position: a whole number of at least 1 is wanted, not '3'"),
        ({True: ValueError()}, "Failed: position: a whole number of at least 1 is wanted, not True"),
        ({0: ValueError()}, "Failed: position: a whole number of at least 1 is wanted, not 0"),
        ({3: "wrong"}, "Failed: 3: an exception is wanted, not 'wrong'"),
        ({3: ValueError}, "Failed: 3: an exception is wanted, not <class 'ValueError'>"),
    ],
)
def test_failed_refuses_what_names_no_message_or_no_error(errors: Any, problem: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared
        Failed(errors)
    assert str(refused.value) == problem


def test_a_checkpoint_is_checked() -> None:
    assert (Checkpoint().seconds, Checkpoint().messages) == (0.2, 1000)
    assert Checkpoint(seconds=0, messages=1) == Checkpoint(seconds=0, messages=1)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "1", None, True])
def test_a_checkpoint_of_wrong_seconds_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="^Checkpoint: seconds: .*wanted, not "):
        Checkpoint(seconds=value)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True])
def test_a_checkpoint_of_wrong_messages_is_refused(value: Any) -> None:
    with pytest.raises(
        ValueError, match="^Checkpoint: messages: a whole number from 1 to 2,147,483,647 is wanted"
    ):
        Checkpoint(messages=value)


def test_a_context_cannot_be_changed_and_logs_under_the_name() -> None:
    made = context(attempt=2, position=7, stream="order-1")
    with pytest.raises(AttributeError):
        made.attempt = 3  # type: ignore[misc]
    assert made.logger.logger.name == "milepost.subscription.invoices"
    assert made.logger.extra == {
        "subscription": "invoices",
        "group": "default",
        "position": 7,
        "stream": "order-1",
        "attempt": 2,
    }
    assert made.replay is False


def test_errors_say_what_they_are_about() -> None:
    assert (ConsumerClosed("it was slow").reason, UnknownSubscription("a").name) == ("it was slow", "a")
    assert all(issubclass(e, MilepostError) and not e.transient for e in (AlreadyExists, DeclaredInCode, Lost))
