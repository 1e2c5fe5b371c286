"""Errors as answers: one form for all of them, RFC 9457, from one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from milepost import errors
from milepost.postgres.describe import database_error

PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_BASE = "/problems/"
"""What the type of every problem begins with; docs/reference/problems.md explains each."""
BUSY_RETRY_SECONDS = "1"
"""Seconds after which what is only busy may be tried again."""


@dataclass(frozen=True)
class ProblemKind:
    """One kind of problem."""

    slug: str
    status: int
    title: str
    fields: tuple[str, ...] = ()
    """What of the error is told besides its words."""
    retry_after: str | None = None
    """Seconds after which the same request may succeed, if it may."""
    words: str | None = None
    """What is said instead of the error's own words, which are for the log alone."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, and what to do about it. Further members depend on the type."""

    type: str
    """What kind of problem it is: a reference that never changes, such as `/problems/wrong-version`."""
    title: str
    """The kind in words."""
    status: int
    """The status of the answer."""
    detail: str
    """What is wrong here, and what to do."""
    transient: bool
    """Whether the same request may succeed when it is made again."""


class RequestRefused(Exception):
    """A request that the server itself refuses; `told` are further members of the problem."""

    def __init__(
        self, kind: ProblemKind, detail: str, *, headers: Mapping[str, str] | None = None, **told: object
    ) -> None:
        self.kind = kind
        self.headers = dict(headers or {})
        self.told = told
        super().__init__(detail)


INVALID = ProblemKind("invalid", 400, "What was sent is not what is wanted", ("field",))
FILTER = ProblemKind("filter", 400, "The filter is wrong", ("kind", "offset"))
UNAUTHENTICATED = ProblemKind("unauthenticated", 401, "A token is wanted")
FORBIDDEN = ProblemKind("forbidden", 403, "The token does not allow this")
NOT_LOCAL = ProblemKind("not-local", 403, "Only this machine is served without a token")
NOT_FOUND = ProblemKind("not-found", 404, "There is nothing here")
UNKNOWN_SUBSCRIPTION = ProblemKind("unknown-subscription", 404, "There is no such subscription", ("name",))
METHOD_NOT_ALLOWED = ProblemKind("method-not-allowed", 405, "This method is not for this path")
TOO_SLOW = ProblemKind("too-slow", 408, "The request took too long to arrive", retry_after=BUSY_RETRY_SECONDS)
WRONG_VERSION = ProblemKind(
    "wrong-version", 409, "The stream is at another version", ("stream", "expected", "actual")
)
ID_REUSED = ProblemKind("id-reused", 409, "The id is there with other content", ("stream", "id"))
ALREADY_EXISTS = ProblemKind("already-exists", 409, "It is there already")
DECLARED_IN_CODE = ProblemKind("declared-in-code", 409, "A program declares it")
NOT_HANDLED = ProblemKind("not-handled", 409, "It is not handled, and somebody has to act", ("state",))
NOT_HANDLED_YET = ProblemKind("not-handled-yet", 409, "It is not handled yet", ("state",))
NOT_CONFIRMED = ProblemKind("not-confirmed", 409, "Workers have not let it go", ("subscription", "workers"))
BUSY = ProblemKind("busy", 409, "Somebody else is changing it", retry_after=BUSY_RETRY_SECONDS)
LOST = ProblemKind("lost", 409, "It belongs to somebody else now")
CONSUMER_CLOSED = ProblemKind("consumer-closed", 409, "The consumer has ended", ("reason",))
BEYOND_HEAD = ProblemKind("beyond-head", 409, "The position is beyond the head of the log", ("field", "head"))
NOT_POSSIBLE = ProblemKind("not-possible", 409, "It cannot be done here")
TOO_LARGE = ProblemKind("too-large", 413, "It is too large", ("field",))
URL_TOO_LONG = ProblemKind("url-too-long", 414, "The address is too long")
NOT_JSON = ProblemKind("not-json", 415, "JSON is wanted")
WRONG_HOST = ProblemKind("wrong-host", 421, "This server is not known by this name")
TOO_MANY_ATTEMPTS = ProblemKind("too-many-attempts", 429, "Too many tokens were wrong")
HEAD_TOO_LARGE = ProblemKind("head-too-large", 431, "The headers are too large")
INTERNAL = ProblemKind(
    "internal",
    500,
    "Something went wrong here",
    words="It is a fault of the server, whose log says more: try again, or tell its operator",
)
UNAVAILABLE = ProblemKind(
    "unavailable",
    503,
    "The database cannot be reached",
    retry_after=BUSY_RETRY_SECONDS,
    words="The database does not answer, or not as it should: try again in a moment",
)
NOT_READY = ProblemKind("not-ready", 503, "The database does not fit this server")
TOO_MANY = ProblemKind("too-many", 503, "The server has enough to do", retry_after=BUSY_RETRY_SECONDS)
TOOK_TOO_LONG = ProblemKind("took-too-long", 503, "It took too long")
GOING_AWAY = ProblemKind("going-away", 503, "The server is being stopped", retry_after=BUSY_RETRY_SECONDS)

KIND_OF_ERROR: Mapping[type[BaseException], ProblemKind] = {
    errors.WrongVersion: WRONG_VERSION,
    errors.IdReused: ID_REUSED,
    errors.TooLarge: TOO_LARGE,
    errors.InvalidMessage: INVALID,
    errors.UnknownSubscription: UNKNOWN_SUBSCRIPTION,
    errors.AlreadyExists: ALREADY_EXISTS,
    errors.DeclaredInCode: DECLARED_IN_CODE,
    errors.NotHandledYet: NOT_HANDLED_YET,
    errors.NotHandled: NOT_HANDLED,
    errors.Busy: BUSY,
    errors.NotConfirmed: NOT_CONFIRMED,
    errors.Lost: LOST,
    errors.ConsumerClosed: CONSUMER_CLOSED,
    errors.SchemaMismatch: NOT_READY,
    errors.LogMismatch: NOT_READY,
    errors.NoDatabase: NOT_READY,
    errors.Unhealthy: NOT_READY,
    errors.Unavailable: UNAVAILABLE,
    errors.NotAllowed: FORBIDDEN,
    errors.FilterError: FILTER,
    errors.MilepostError: NOT_POSSIBLE,
}
"""Which error becomes which problem; the closest class counts."""

ALL_KINDS: tuple[ProblemKind, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, ProblemKind)
)


@dataclass(frozen=True)
class ProblemResponse:
    """An answer about a problem."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def problem_response(error: BaseException) -> ProblemResponse:
    """What to answer; nothing of an error that nobody foresaw is told."""
    if isinstance(error, RequestRefused):
        passes = error.kind.retry_after is not None or "retry-after" in error.headers
        return _response_of_kind(error.kind, str(error), transient=passes, told=error.told, headers=error.headers)
    kind = next((KIND_OF_ERROR[cls] for cls in type(error).__mro__ if cls in KIND_OF_ERROR), None)
    if kind is None:
        found = database_error(error)
        if found is not None and found.kind == "value":
            return _response_of_kind(INVALID, f"PostgreSQL cannot take this value: {found.text}")
        kind = INTERNAL
    told = {name: getattr(error, name) for name in kind.fields if hasattr(error, name)}
    return _response_of_kind(
        kind, _problem_detail(kind, error), transient=getattr(error, "transient", False), told=told
    )


def _response_of_kind(
    kind: ProblemKind,
    detail: str,
    *,
    transient: bool = False,
    told: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    problem = Problem(
        type=PROBLEM_TYPE_BASE + kind.slug,
        title=kind.title,
        status=kind.status,
        detail=_encodable_text(detail),
        transient=transient,
    )
    retry = {} if kind.retry_after is None else {"retry-after": kind.retry_after}
    body = _encode_members({**msgspec.structs.asdict(problem), **(told or {})})
    return ProblemResponse(kind.status, body, {**retry, **(headers or {})})


def _encode_members(members: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({name: _encodable_text(value) for name, value in members.items()})


def _encodable_text(value: Any) -> Any:
    """Text that can be sent: a half of a surrogate pair, which a name may hold, is spelled out."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _problem_detail(kind: ProblemKind, error: BaseException) -> str:
    return str(error) if kind.words is None else kind.words
