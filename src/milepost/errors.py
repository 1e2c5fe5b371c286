"""The errors of Milepost: one class for each decision that a caller can take."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=Exception)


class Picklable(Exception):
    """An exception that keeps its text and its fields when it is pickled or copied, whatever `__init__` takes.

    Python makes a copy by calling the class with the text alone. That fails for most classes here, and an error
    that cannot be unpickled breaks a `ProcessPoolExecutor` for good.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        return _copy_of, (type(self), self.args), vars(self)


def _copy_of(cls: type[E], args: tuple[object, ...]) -> E:
    copy = cls.__new__(cls)
    # Not `cls.__init__`, which makes the text anew, and not OSError's, which takes two arguments for an errno.
    Exception.__init__(copy, *args)
    return copy


class MilepostError(Picklable):
    """The base of every error that Milepost raises on purpose."""

    transient: ClassVar[bool] = False
    """Whether the same call may succeed when it is tried again."""


class WrongVersion(MilepostError):
    """The stream is not at the version that the append expected."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        self.stream = stream
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"stream {stream!r} is at version {actual}, not at {_in_words(expected)}: "
            "read it again and decide anew"
        )


def _in_words(expected: int) -> str:
    return {0: "0 (NO_STREAM)", -1: "1 or more (STREAM_EXISTS)"}.get(expected, str(expected))


class IdReused(MilepostError):
    """A message id is in the stream already, with other content. Nothing was written."""

    def __init__(self, stream: str, id: str, why: str) -> None:
        self.stream = stream
        self.id = id
        super().__init__(f"message id {id} of stream {stream!r} {why}")


class InvalidMessage(MilepostError):
    """A message, a name or a payload that cannot be stored or understood; `field` says which part."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}")


class TooLarge(InvalidMessage):
    """A message, a name or a number of things is over its limit."""


class UnknownSubscription(MilepostError):
    """There is no subscription of this name."""

    def __init__(self, name: str, hint: str = "") -> None:
        self.name = name
        super().__init__(f"there is no subscription {name!r}{hint}")


class AlreadyExists(MilepostError):
    """There is a subscription of this name already, and it was not to be changed."""


class DeclaredInCode(MilepostError):
    """What was to be changed is declared by a program: change it there."""


class NotHandled(MilepostError):
    """A subscription has not handled an append, and somebody has to act first; `state` says where it is."""

    def __init__(self, problem: str, state: str) -> None:
        self.state = state
        super().__init__(problem)


class NotHandledYet(NotHandled, TimeoutError):
    """A subscription has not handled an append in the time that was given; `state` says where it is."""

    transient: ClassVar[bool] = True


class Busy(MilepostError):
    """Somebody else is changing the same just now."""

    transient: ClassVar[bool] = True


class NotConfirmed(MilepostError):
    """Workers have not let a subscription go in time: `workers` says which, the text what holds all the same."""

    transient: ClassVar[bool] = True

    def __init__(self, subscription: str, workers: Sequence[str], so_far: str = "") -> None:
        self.subscription = subscription
        self.workers = tuple(workers)
        stands = f"{so_far}; " if so_far else ""
        names = ", ".join(workers)
        super().__init__(f"{subscription}: {stands}not confirmed by {names}, which may still be at work on it")


class Lost(MilepostError):
    """A lease or a claim is no longer this one's: another may be at work on the same. Do not go on."""


class ConsumerClosed(MilepostError):
    """The consumer has ended; `reason` says why, in one of these words.

    "left": its block has ended. "drained": it was to take nothing new, and what it had is settled. "stopped": one
    of its deliveries was settled with `stop`. "too many consumers": it could not come, by `max_consumers`.
    "deleted": the subscription was. "closed": the `Milepost` was. "lost": this process could not go on with the
    subscription; its log says why. Of a client also "access": its token is not in force or does not allow it; "bad
    frame": the server did not understand it.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"the consumer is closed: {reason}{detail}")


class SchemaMismatch(MilepostError):
    """The database's schema and this program do not fit together; the message says what to do."""


class LogMismatch(MilepostError):
    """Progress does not belong to this log: it is another one, or it went back; the message says what to do."""


class NoDatabase(MilepostError):
    """No database was named, or by no address, or the embedded one cannot be started."""


class Unavailable(MilepostError):
    """The database, or the server, cannot serve this now: unreachable, starting, or not a primary."""

    transient: ClassVar[bool] = True


class Unhealthy(MilepostError):
    """This process does not do its work any more, and only a new one would: see `Milepost.health`."""


class NotAllowed(MilepostError):
    """A server does not let this client do it: no token, one that is not in force, or one without the `role`."""

    def __init__(self, problem: str, role: str | None = None) -> None:
        self.role = role
        super().__init__(problem)


class FilterError(MilepostError):
    """A filter expression is wrong, or could not be evaluated on a message.

    `kind` is "syntax", "type", "too_long" or "too_complex" for a text that is refused, and "name",
    "type" or "arithmetic" for an evaluation that failed. `offset` is the place in the text, in
    characters from 0.
    """

    def __init__(self, kind: str, offset: int, message: str) -> None:
        self.kind = kind
        self.offset = offset
        super().__init__(message)
