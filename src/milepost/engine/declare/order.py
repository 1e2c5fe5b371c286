"""What a subscription orders by: messages of one key are handled one after the other."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

from milepost.engine.checks import checked, whole
from milepost.engine.declare.outcomes import FATAL
from milepost.log.message import Message, id_in
from milepost.names import MAX_NAME_BYTES, bucket_of, is_property_name

AnyMessage: TypeAlias = Message[Any]

MAX_KEY_CHARACTERS = 512
"""The longest key that is stored as it is, in characters; of longer ones a hash."""


class NoKey(Exception):
    """A function gave no key for a message: it raised, which `__cause__` is then, or returned something else."""

    def __init__(self, message: AnyMessage, reason: str) -> None:
        self.message = message
        self.reason = reason
        super().__init__(reason)


class Order(Protocol):
    """A way to order."""

    @property
    def text(self) -> str:
        """The one text of all orders that mean the same. Stored: it never changes."""
        ...

    def key(self, message: AnyMessage) -> str | None:
        """The key of a message, None without an order. Stored: it never changes. May raise `NoKey`."""
        ...

    def stream_key(self, message: AnyMessage) -> str | None:
        """The key that stands for the message's stream, for one that has no other."""
        ...

    def keys(self, messages: Sequence[AnyMessage]) -> list[str] | None:
        """The key of each message, None without an order. May raise `NoKey`, for the first that has none."""
        ...

    @property
    def by_stream(self) -> bool:
        """Whether all messages of a stream are in one lane."""
        ...


@dataclass(frozen=True)
class ByStream:
    """The messages of a stream in their order."""

    @property
    def text(self) -> str:
        return "stream"

    def key(self, message: AnyMessage) -> str:
        return message.stream

    stream_key = key

    def keys(self, messages: Sequence[AnyMessage]) -> list[str]:
        return list(map(_stream_of, messages))

    by_stream = True


@dataclass(frozen=True)
class NoOrder:
    """No order: any message at any time."""

    @property
    def text(self) -> str:
        return "none"

    def key(self, message: AnyMessage) -> None:
        return None

    stream_key = key

    def keys(self, messages: Sequence[AnyMessage]) -> None:
        return None

    by_stream = True


class _ByValue:
    """Orders whose keys are values: `1`, `"1"`, `true`, or `stream order-42` for a message without one."""

    def key(self, message: AnyMessage) -> str:
        raise NotImplementedError

    def stream_key(self, message: AnyMessage) -> str:
        return f"stream {message.stream}"

    def keys(self, messages: Sequence[AnyMessage]) -> list[str]:
        return list(map(self.key, messages))

    by_stream = False


@dataclass(frozen=True)
class ByProperty(_ByValue):
    """Messages with the same value of a property; those without it keep the order of their stream."""

    name: str

    @property
    def text(self) -> str:
        return f"property {self.name}"

    def key(self, message: AnyMessage) -> str:
        value = message.properties.get(self.name)
        return self.stream_key(message) if value is None else _key_text(value)


@dataclass(frozen=True)
class ByCorrelation(_ByValue):
    """Messages with the same `correlation_id`; those without one, or with an empty one, go by their stream."""

    @property
    def text(self) -> str:
        return "correlation"

    def key(self, message: AnyMessage) -> str:
        value = id_in(message.metadata, "correlation_id")
        return self.stream_key(message) if value is None else _key_text(value)


@dataclass(frozen=True)
class ByFunction(_ByValue):
    """Messages for which a function gives the same string, or the same integer."""

    function: Callable[[AnyMessage], str | int]
    version: int

    @property
    def text(self) -> str:
        return f"function {self.version}"

    def key(self, message: AnyMessage) -> str:
        try:
            value = self.function(message)
            if isinstance(value, str | int) and not isinstance(value, bool):
                return _checked_key(_key_text(value))
        except FATAL:
            raise
        except BaseException as error:
            raise NoKey(message, f"no key: {self._name} raised {error!r}") from error
        raise NoKey(
            message, f"no key: {self._name} returned a {type(value).__name__}; a string or an integer is wanted"
        )

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


def by_property(name: str) -> Order:
    """Handles messages with the same value of this property in order; those without it, by their stream."""
    return ByProperty(checked("by_property", _property_name, name))


by_correlation: Final[Order] = ByCorrelation()
"""Handles messages with the same `correlation_id` in order; those without one, by their stream."""


def by_function(function: Callable[[AnyMessage], str | int], version: int = 1) -> Order:
    """Handles messages for which the function gives the same string or integer in order.

    Args:
        function: Takes a message. Where it raises or returns something else, the message is parked.
        version: Grows when the function gives other keys than before, since code cannot be compared.
            Defaults to 1.
    """
    return ByFunction(
        checked("by_function", _plain_function, function), checked("by_function: version", whole(1), version)
    )


def lanes_of(messages: Sequence[AnyMessage], keys: Sequence[str] | None, lanes: int) -> list[int]:
    """The lane of each message: its key's bucket decides, without an order its stream's."""
    if keys is None:
        return [_bucket_of(message.stream) % lanes for message in messages]
    return [_bucket_of(key) % lanes for key in keys]


def lanes_and_keys(messages: Sequence[AnyMessage], order: Order, lanes: int) -> tuple[list[int], list[str] | None]:
    """The lane and, with an order, the key of each message; its stream's where a function gives none."""
    try:
        keys = order.keys(messages)
    except NoKey:
        keys = [_key_or_stream(message, order) for message in messages]
    return lanes_of(messages, keys, lanes), keys


def _key_or_stream(message: AnyMessage, order: Order) -> str:
    try:
        return order.key(message) or ""
    except NoKey:
        return order.stream_key(message) or ""


_bucket_of = lru_cache(maxsize=100_000)(bucket_of)

BY_STREAM: Final[Order] = ByStream()
NO_ORDER: Final[Order] = NoOrder()

_ORDER_CLASSES = (ByStream, NoOrder, ByProperty, ByCorrelation, ByFunction)


def order_from_option(value: Any) -> Order:
    """What `ordered_by` means; what it cannot mean is a `ValueError` that says what is wanted."""
    if value is None:
        return NO_ORDER
    if isinstance(value, str) and value == "stream":
        return BY_STREAM
    if isinstance(value, _ORDER_CLASSES):
        return value
    raise ValueError('"stream", by_property("Name"), by_correlation, by_function(f, version=1) or None is wanted')


def order_from_text(text: str, own: Order) -> Order:
    """The order of this text; a function, which only its own program has, is `own`."""
    kind, _, name = text.partition(" ")
    match kind:
        case "stream":
            return BY_STREAM
        case "none":
            return NO_ORDER
        case "property":
            return ByProperty(name)
        case "correlation":
            return by_correlation
    return own


_stream_of = attrgetter("stream")


def _key_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Of the base class itself: an enumeration writes its members in another way.
    if isinstance(value, str):
        text = f'"{str.__str__(value)}"'
    elif isinstance(value, int):
        text = int.__repr__(value)
    else:
        # No property may be this, but who calls `write` in SQL can make it one, and must not stop the others.
        text = repr(value)
    return text if len(text) <= MAX_KEY_CHARACTERS else f"sha256 {sha256(text.encode()).hexdigest()}"


def _checked_key(key: str) -> str:
    key.encode()
    if "\0" in key:
        raise ValueError("a key with a NUL character")
    return key


def _property_name(value: Any) -> str:
    if not isinstance(value, str) or not is_property_name(value):
        raise ValueError("a property's name, a letter and then letters, digits, _ and ., is wanted")
    if len(value) > MAX_NAME_BYTES:
        raise ValueError(f"a property's name of at most {MAX_NAME_BYTES} bytes is wanted")
    return value


def _plain_function(value: Any) -> Callable[[AnyMessage], str | int]:
    if not callable(value) or isinstance(value, type):
        raise ValueError("a function of a message is wanted")  # noqa: TRY004 - a wrong value, as with every option
    if inspect.iscoroutinefunction(value):
        raise ValueError("a plain function is wanted, which does no I/O")
    if not _takes_a_message(value):
        raise ValueError("a function of one parameter, the message, is wanted")
    function: Callable[[AnyMessage], str | int] = value
    return function


def _takes_a_message(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # Some callables of C have none to look at.
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True
