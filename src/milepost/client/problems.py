"""Problems that a server tells (RFC 9457), as the errors that the library raises."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from milepost import errors
from milepost.errors import MilepostError, NotAllowed, Unavailable

MAX_PROBLEM_BYTES: Final = 2**18
"""What is longer is no problem that a server tells: it is not looked into."""
MAX_DETAIL_CHARACTERS: Final = 10_000
"""Characters of what a server says that are kept."""
PROBLEM_TYPE_BASE: Final = "/problems/"


class ReadTookTooLong(MilepostError):
    """A read found nothing for so long that the server ended it; `next` is where to go on, if it got anywhere."""

    next: int | None


ERROR_OF_SLUG: Final[Mapping[str, type[MilepostError]]] = {
    "invalid": errors.InvalidMessage,
    "beyond-head": errors.InvalidMessage,
    "filter": errors.FilterError,
    "unauthenticated": NotAllowed,
    "forbidden": NotAllowed,
    "not-local": NotAllowed,
    "wrong-host": NotAllowed,
    "too-many-attempts": NotAllowed,
    "unknown-subscription": errors.UnknownSubscription,
    "wrong-version": errors.WrongVersion,
    "id-reused": errors.IdReused,
    "already-exists": errors.AlreadyExists,
    "declared-in-code": errors.DeclaredInCode,
    "not-handled": errors.NotHandled,
    "not-handled-yet": errors.NotHandledYet,
    "not-confirmed": errors.NotConfirmed,
    "busy": errors.Busy,
    "lost": errors.Lost,
    "consumer-closed": errors.ConsumerClosed,
    "too-large": errors.TooLarge,
    "not-ready": errors.SchemaMismatch,
    "unavailable": Unavailable,
    "too-slow": Unavailable,
    "too-many": Unavailable,
    "going-away": Unavailable,
    "took-too-long": ReadTookTooLong,
}
"""Which error each kind of problem is; any other is a `MilepostError`."""

ERROR_FIELDS: Final[Mapping[type[MilepostError], Mapping[str, Any]]] = {
    errors.InvalidMessage: {"field": str},
    errors.FilterError: {"kind": str, "offset": int},
    errors.UnknownSubscription: {"name": str},
    errors.WrongVersion: {"stream": str, "expected": int, "actual": int},
    errors.IdReused: {"stream": str, "id": str},
    errors.NotHandled: {"state": str},
    errors.NotConfirmed: {"subscription": str, "workers": tuple[str, ...]},
    errors.ConsumerClosed: {"reason": str},
    NotAllowed: {"role": str | None},
    ReadTookTooLong: {"next": int | None},
}
"""What an error has besides its words, and what it has to be."""


class ReceivedProblem(msgspec.Struct, frozen=True):
    """What every problem has."""

    type: str = ""
    detail: str = ""
    transient: bool = False


def error_of_answer(body: bytes, status: int, node: object) -> MilepostError:
    """The error that an answer with this status tells."""
    if len(body) > MAX_PROBLEM_BYTES:
        return _error_without_problem(status, node)
    try:
        problem = msgspec.json.decode(body, type=ReceivedProblem)
        members = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _error_without_problem(status, node)
    return (
        _error_of_problem(problem, members)
        if problem.type.startswith(PROBLEM_TYPE_BASE)
        else _error_without_problem(status, node)
    )


def _error_of_problem(problem: ReceivedProblem, members: Mapping[str, Any]) -> MilepostError:
    """The error of a problem, with the fields that it has in the library."""
    kind = ERROR_OF_SLUG.get(problem.type.removeprefix(PROBLEM_TYPE_BASE), MilepostError)
    error = kind.__new__(kind)
    Exception.__init__(error, problem.detail[:MAX_DETAIL_CHARACTERS])
    for cls in kind.__mro__:
        for name, wanted in ERROR_FIELDS.get(cls, {}).items():
            setattr(error, name, _convert_member(members.get(name), wanted))
    vars(error)["transient"] = problem.transient
    return error


def _convert_member(value: Any, wanted: Any) -> Any:
    """A field of a problem; a server that says something else about it is not believed."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return {str: "", int: 0}.get(wanted)


def _error_without_problem(status: int, node: object) -> MilepostError:
    """Whoever answered is no Milepost: a proxy before it that does not reach it, or something else."""
    if status in (502, 503, 504):
        return Unavailable(f"{node}: what stands before the server does not reach it (status {status})")
    return MilepostError(f"{node} answered with status {status}, and not as a Milepost server does: is it one?")
