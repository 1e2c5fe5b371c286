"""What a handler asks for by its annotations."""

from collections.abc import Callable, Container
from dataclasses import dataclass, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

import msgspec

from milepost.engine.context import Context
from milepost.engine.described import EMPTY, Described, Parameter
from milepost.engine.transaction import Transaction
from milepost.log.codec import MessageClass
from milepost.log.message import Message

Classes: TypeAlias = Callable[[type], MessageClass | None]
"""Finds what a class was registered as."""

_OWN = (Message, Transaction, Context)
_VALUES = (str, int, float, bool, bytes, dict, list, tuple, set, frozenset, object, type, NoneType, Any)


class Source(Enum):
    """Where the value of a parameter comes from."""

    MESSAGE = "the message"
    PAYLOAD = "the payload"
    CONTEXT = "the context"
    TRANSACTION = "the transaction"
    PROVIDER = "a provider"
    """if there is one; else the parameter's default"""
    DEFAULT = "the parameter's default"


@dataclass(frozen=True)
class Asked:
    """A parameter, and what is meant by it. `hint` is what a provider has to give."""

    parameter: Parameter
    source: Source
    hint: Any = None
    classes: tuple[type, ...] = ()
    """The payload's, if they are named."""
    batch: bool = False


@dataclass(frozen=True)
class Signature:
    """What a handler asks for."""

    described: Described
    asked: tuple[Asked, ...]
    types: frozenset[str] | None
    """The stored types of the payloads it names, older names too; None if it takes any message."""
    batch: bool
    """Whether it takes a list of messages."""

    @classmethod
    def of(cls, function: Any, classes: Classes, provided: Container[Any] = ()) -> "Signature":
        """Reads a handler's annotations; what nobody can give is refused.

        `provided` has what providers are known to give. Of other classes one may still be declared.
        """
        described = Described(function)
        if described.is_generator or described.is_async_generator:
            raise TypeError(f"{described}: a handler cannot be a generator: it has no use for what is yielded")
        parameters = described.parameters()
        reader = _Reader(described, classes, provided, _bare(parameters))
        asked = tuple(map(reader.read, parameters))
        _refuse_nothing(described, asked)
        _refuse_contradictions(described, asked)
        return cls(described, asked, _types(asked, classes), any(each.batch for each in asked))


@dataclass(frozen=True)
class _Reader:
    """Finds what the parameters of one handler mean."""

    described: Described
    classes: Classes
    provided: Container[Any]
    bare: Parameter | None
    """The parameter without annotation that gets the message."""

    def read(self, parameter: Parameter) -> Asked:
        """What a parameter means."""
        if parameter is self.bare:
            return Asked(parameter, Source.MESSAGE)
        if parameter.hint is EMPTY:
            return self._unannotated(parameter)
        if parameter.hint in self.provided:
            return Asked(parameter, Source.PROVIDER, parameter.hint)
        if get_origin(parameter.hint) is list:
            return self._batch(parameter, get_args(parameter.hint)[0])
        return self._subject(parameter, parameter.hint) or self._other(parameter)

    def _unannotated(self, parameter: Parameter) -> Asked:
        if not parameter.required:
            return Asked(parameter, Source.DEFAULT)
        if parameter.name == "self":
            raise self._wrong(
                parameter, 'this is a method of no object: write mp.subscription("name", …)(object.method)'
            )
        raise self._wrong(
            parameter, "it has no annotation: write Message, the class of a payload, or what is provided"
        )

    def _batch(self, parameter: Parameter, element: Any) -> Asked:
        found = self._subject(parameter, element)
        if found is not None:
            return Asked(parameter, found.source, classes=found.classes, batch=True)
        if not parameter.required:
            return Asked(parameter, Source.PROVIDER, parameter.hint)
        self._refuse_payload_like(parameter, element)
        raise self._wrong(
            parameter, f"a list of {name_of(element)} is no batch: write list[Message], or list[…] of a payload"
        )

    def _subject(self, parameter: Parameter, hint: Any) -> Asked | None:
        """A message or a payload, if that is what is asked for."""
        if hint is Message:
            return Asked(parameter, Source.MESSAGE)
        if get_origin(hint) is Message:
            (inner,) = get_args(hint)
            if inner is Any:
                return Asked(parameter, Source.MESSAGE)
            classes = self._payloads(inner)
            if not classes:
                self._refuse_payload_like(parameter, inner)
                raise self._wrong(
                    parameter, f"{name_of(inner)} is no registered class: decorate it with @mp.message()"
                )
            return Asked(parameter, Source.MESSAGE, classes=classes)
        classes = self._payloads(hint)
        return Asked(parameter, Source.PAYLOAD, classes=classes) if classes else None

    def _payloads(self, hint: Any) -> tuple[type, ...]:
        """The registered classes that a hint names; none if it names anything else."""
        named = get_args(hint) if is_union(hint) else (hint,)
        if all(is_class(cls) and self.classes(cls) is not None for cls in named):
            return named
        return ()

    def _other(self, parameter: Parameter) -> Asked:
        hint = parameter.hint
        if hint is Context:
            return Asked(parameter, Source.CONTEXT)
        if hint is Transaction:
            return self._transaction(parameter)
        if is_union(hint):
            return self._union(parameter)
        if parameter.required:
            self._refuse_payload_like(parameter, hint)
            self._refuse_other_batch(parameter, hint)
            refuse_values(self.described, parameter)
        return Asked(parameter, Source.PROVIDER, hint)

    def _transaction(self, parameter: Parameter) -> Asked:
        if not self.described.is_async:
            raise self._wrong(parameter, "a Transaction is used with await: write `async def` for the handler")
        return Asked(parameter, Source.TRANSACTION)

    def _union(self, parameter: Parameter) -> Asked:
        members = get_args(parameter.hint)
        rest = [member for member in members if member is not NoneType]
        ours = [member for member in rest if member in _OWN or self._subject(parameter, member)]
        if len(rest) < len(members) and (ours or parameter.required):
            inner = " | ".join(map(name_of, rest))
            raise self._wrong(parameter, f"it is always given, or never: write {inner} instead of {inner} | None")
        if not parameter.required:
            return Asked(parameter, Source.PROVIDER, without_none(parameter.hint))
        for member in rest:
            self._refuse_payload_like(parameter, member)
        raise self._wrong(
            parameter,
            f"{name_of(parameter.hint)} is not a choice of payloads: write A | B of registered classes, "
            "Message[A | B], or Message",
        )

    def _refuse_other_batch(self, parameter: Parameter, hint: Any) -> None:
        is_collection = getattr(get_origin(hint), "__module__", None) in ("builtins", "collections.abc")
        if is_collection and any(self._subject(parameter, element) for element in get_args(hint)):
            raise self._wrong(parameter, f"for a batch write list[…] instead of {name_of(hint)}")

    def _refuse_payload_like(self, parameter: Parameter, hint: Any) -> None:
        for cls in get_args(hint) if is_union(hint) else (hint,):
            if is_class(cls) and self.classes(cls) is None and _looks_like_payload(cls):
                raise self._wrong(
                    parameter,
                    f"{cls.__name__} is not registered: decorate it with @mp.message(), or declare the provider "
                    "that gives it before this",
                )

    def _wrong(self, parameter: Parameter, problem: str) -> TypeError:
        return self.described.wrong(parameter, problem)


def is_union(hint: Any) -> bool:
    """Whether it is `A | B`."""
    return get_origin(hint) in (Union, UnionType)


def without_none(hint: Any) -> Any:
    """The `A` of `A | None`, which a parameter with a default may say; any other hint as it is."""
    rest = [member for member in get_args(hint) if member is not NoneType] if is_union(hint) else []
    return rest[0] if len(rest) == 1 else hint


def refuse_values(described: Described, parameter: Parameter) -> None:
    """Refuses what is no class that a provider would give, and is not provided."""
    hint = parameter.hint
    origin = get_origin(hint) or hint
    for own in _OWN:
        if getattr(origin, "__name__", None) == own.__name__ and origin is not own:
            raise described.wrong(
                parameter, f"this is {name_of(hint)} of {origin.__module__}, not that of milepost"
            )
    if origin in _VALUES or not (is_class(origin) or hasattr(hint, "__supertype__")):
        raise described.wrong(
            parameter,
            f"nobody provides {name_of(hint)}: write Message, the class of a payload, list[…] of one of them, "
            "Transaction, Context, or what a provider returns",
        )


def name_of(hint: Any) -> str:
    """A hint as a person would write it."""
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def is_class(hint: Any) -> bool:
    """Whether it is a class, without parameters."""
    return isinstance(hint, type) and get_origin(hint) is None


def _looks_like_payload(cls: type) -> bool:
    return is_dataclass(cls) or issubclass(cls, msgspec.Struct) or hasattr(cls, "model_dump_json")


def _bare(parameters: list[Parameter]) -> Parameter | None:
    """The only positional parameter, if it has no annotation: it can only be the message."""
    positional = [each for each in parameters if each.required and not each.keyword_only]
    return positional[0] if len(positional) == 1 and positional[0].hint is EMPTY else None


def _refuse_nothing(described: Described, asked: tuple[Asked, ...]) -> None:
    """One that is called with nothing would count every message as handled."""
    if all(each.source is Source.DEFAULT for each in asked):
        raise TypeError(
            f"{described}: it asks for no message: annotate a parameter with Message, or the class of a payload; "
            "a decorator around it needs functools.wraps"
        )


def _refuse_contradictions(described: Described, asked: tuple[Asked, ...]) -> None:
    payloads = [each for each in asked if each.source is Source.PAYLOAD]
    messages = [each for each in asked if each.source is Source.MESSAGE]
    for several in (payloads, messages):
        if len(several) > 1:
            raise described.wrong(
                several[1].parameter,
                f"there is one message in a call, and {several[0].parameter.name!r} gets it already: for several "
                "types write A | B, for several messages list[…]",
            )
    if not payloads or not messages:
        return
    (payload,), (message,) = payloads, messages
    if payload.batch != message.batch:
        raise described.wrong(message.parameter, "either both this and the payload are a list[…], or neither is")
    if message.classes and set(message.classes) != set(payload.classes):
        raise described.wrong(message.parameter, f"it names other payloads than {payload.parameter.name!r}")


def _types(asked: tuple[Asked, ...], classes: Classes) -> frozenset[str] | None:
    declared = [classes(cls) for each in asked for cls in each.classes]
    names = frozenset(name for found in declared if found for name in (found.name, *found.aliases))
    return names or None
