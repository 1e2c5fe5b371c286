"""What is expected of answers."""

from typing import Any

import httpx

from milepost.server.problems import ALL_KINDS, PROBLEM_MEDIA_TYPE, PROBLEM_TYPE_BASE, ProblemKind


def done(answer: httpx.Response) -> Any:
    """What a request that went well was answered."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def problem(answer: httpx.Response, kind: ProblemKind, *words: str) -> dict[str, Any]:
    """Asserts that an answer is a problem of a kind that says these words; returns it."""
    found: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert (found["type"], found["status"], answer.status_code) == (
        PROBLEM_TYPE_BASE + kind.slug,
        kind.status,
        kind.status,
    ), found
    assert found["title"] == kind.title
    for word in words:
        assert word in found["detail"], found
    return found


def refused(answer: httpx.Response) -> dict[str, Any]:
    """Asserts that an answer is any problem but one of the server's own; returns it."""
    found: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert 400 <= answer.status_code < 500, found
    assert found["type"].removeprefix(PROBLEM_TYPE_BASE) in {kind.slug for kind in ALL_KINDS}
    return found
