"""Errors leave a process and come back as they were."""

import pickle
from asyncio import CancelledError
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import copy, deepcopy
from multiprocessing import get_context

import pytest

from milepost import Failed, Park, RetryLater, Skip, errors
from milepost.client.transport import NodeUnanswered
from milepost.engine.handlers.invoker import HandlerCancelled, TimedOut
from milepost.errors import FilterError, InvalidMessage
from milepost.filter import compile_filter
from milepost.log.codec import check_stream

ERRORS = [
    errors.MilepostError("not open"),
    errors.WrongVersion("order-1", 3, 4),
    errors.IdReused("order-1", "0d5", "has other content"),
    errors.InvalidMessage("data", "it has a NaN"),
    errors.TooLarge("stream", "600 bytes"),
    errors.UnknownSubscription("emalis", ": did you mean 'emails'?"),
    errors.AlreadyExists("there is one"),
    errors.DeclaredInCode("a program declares it"),
    errors.NotHandled("it is paused", "paused"),
    errors.NotHandledYet("not in 2 s", "waiting"),
    errors.Busy("somebody else"),
    errors.NotConfirmed("emails", ["host:1", "host:2"], "it is paused"),
    errors.Lost("the claim"),
    errors.ConsumerClosed("drained", ", as asked"),
    errors.SchemaMismatch("migrate it"),
    errors.LogMismatch("another log"),
    errors.NoDatabase("no database"),
    errors.Unavailable("starting"),
    errors.Unhealthy("handlers have hung"),
    errors.NotAllowed("no token", "append"),
    errors.FilterError("syntax", 3, "a == \n     ^"),
]
OUTCOMES = [
    Park("no such customer"),
    Skip("a test order"),
    RetryLater(60, count=False, reason="closed"),
    Failed({7: ValueError("negative"), 9: RetryLater(5)}),
]
OTHERS = [
    NodeUnanswered("host:8480 is not reached", sent=True),
    # What `run_until_idle` raises of handlers.
    TimedOut(0.5),
    HandlerCancelled(CancelledError("the pool was closed")),
]
COPIES: dict[str, Callable[[Exception], Exception]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy,
    "deepcopy": deepcopy,
}


def test_every_class_of_errors_is_here() -> None:
    classes = {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, Exception) and cls is not errors.Picklable
    }
    assert {type(error) for error in ERRORS} == classes


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("error", [*ERRORS, *OUTCOMES, *OTHERS], ids=lambda error: type(error).__name__)
def test_a_copy_has_the_text_and_the_fields(error: Exception, how: str) -> None:
    error.add_note("seen by the caller")
    copied = COPIES[how](error)
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert repr(copied) == repr(error)
    # Exceptions in a field have no equality of their own.
    assert {name: repr(value) for name, value in vars(copied).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }


def test_a_process_pool_hands_errors_on_and_works_on() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(InvalidMessage, match="it is empty") as invalid:
            pool.submit(check_stream, "").result()
        with pytest.raises(FilterError) as wrong:
            pool.submit(compile_filter, "amount == ").result()
        assert pool.submit(int, "7").result() == 7
    assert invalid.value.field == "stream"
    assert (wrong.value.kind, wrong.value.offset) == ("syntax", 9)
