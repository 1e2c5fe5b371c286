"""Errors of the library, as problems and back."""

import json

import pytest

from milepost import errors
from milepost.client.problems import ERROR_OF_SLUG, error_of_answer
from milepost.errors import MilepostError, NotAllowed, Unavailable
from milepost.server.problems import (
    ALL_KINDS,
    FORBIDDEN,
    PROBLEM_TYPE_BASE,
    TOO_MANY_ATTEMPTS,
    RequestRefused,
    problem_response,
)

RAISED = [
    errors.WrongVersion("order-1", 3, 7),
    errors.IdReused("order-1", "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f", "is there with other content"),
    errors.InvalidMessage("type", "it is empty"),
    errors.TooLarge("message", "it is too large"),
    errors.UnknownSubscription("default/a", ": did you mean 'b'?"),
    errors.AlreadyExists("there is one"),
    errors.DeclaredInCode("it is in code"),
    errors.NotHandled("it is parked", "parked"),
    errors.NotHandledYet("not yet", "retrying"),
    errors.Busy("somebody"),
    errors.NotConfirmed("default/a", ["one", "two"]),
    errors.Lost("it is lost"),
    errors.ConsumerClosed("deleted"),
    errors.FilterError("syntax", 7, "what is wrong"),
    MilepostError("it cannot be done"),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(raised: MilepostError) -> None:
    answer = problem_response(raised)
    error = error_of_answer(answer.body, answer.status, "a node")
    assert type(error) is type(raised)
    assert str(error) == str(raised)
    assert {name: value for name, value in vars(error).items() if name != "transient"} == vars(raised)
    assert error.transient is raised.transient
    assert isinstance(error, TimeoutError) is isinstance(raised, TimeoutError)


def test_what_only_a_server_says() -> None:
    forbidden = problem_response(RequestRefused(FORBIDDEN, "This takes a token with the role read", role="read"))
    error = error_of_answer(forbidden.body, 403, "a node")
    assert isinstance(error, NotAllowed)
    assert (error.role, error.transient) == ("read", False)
    attempts = problem_response(RequestRefused(TOO_MANY_ATTEMPTS, "Wait", headers={"retry-after": "60"}))
    assert error_of_answer(attempts.body, 429, "a node").transient
    assert type(error_of_answer(problem_response(errors.Unavailable("down")).body, 503, "a node")) is Unavailable


def test_every_kind_is_known_or_meant_to_be_a_plain_error() -> None:
    plain = {"not-found", "method-not-allowed", "not-possible", "url-too-long", "not-json", "head-too-large"}
    plain |= {"internal"}
    assert {kind.slug for kind in ALL_KINDS} - plain == set(ERROR_OF_SLUG)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b"{}", b'{"type": 7}', b'{"type": "about:blank"}', b"\xff", b"[" * 100_000],
)
def test_an_answer_that_is_no_problem(body: bytes) -> None:
    assert isinstance(error_of_answer(body, 502, "a node"), Unavailable)
    assert "is it one?" in str(error_of_answer(body, 418, "a node"))


def test_a_problem_with_odd_members() -> None:
    body = json.dumps(
        {"type": PROBLEM_TYPE_BASE + "wrong-version", "detail": "x" * 100_000, "stream": [], "actual": "many"}
    )
    error = error_of_answer(body.encode(), 409, "a node")
    assert isinstance(error, errors.WrongVersion)
    assert (error.stream, error.actual, len(str(error))) == ("", 0, 10_000)
