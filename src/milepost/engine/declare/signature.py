"""A user's function: its name, where it stands, and what it asks for by its annotations."""

import dis
import inspect
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from types import CodeType, NoneType, SimpleNamespace, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from milepost.engine.declare.context import Context, Transaction
from milepost.log.codec import MessageClass
from milepost.log.message import Message

EMPTY: Final = inspect.Parameter.empty
"""No annotation, or no default."""

Function: TypeAlias = Callable[..., Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class FunctionParameter:
    """A parameter as it is written."""

    name: str
    hint: Any
    default: Any
    keyword_only: bool

    @property
    def required(self) -> bool:
        return self.default is EMPTY


class UserFunction:
    """A function or another callable: its name, where it is, what it asks for, how it is called."""

    def __init__(self, given: Any) -> None:
        self.function: Function = _callable(given)
        levels = list(_wrapping_levels(self.function))
        self._inner = levels[-1]
        self.name: str = getattr(self._inner, "__qualname__", type(self.function).__name__)
        self.is_async = any(map(inspect.iscoroutinefunction, levels))
        """Whether a call gives something to await; a plain wrapper passes on what the function beneath gives."""
        self.is_generator = any(map(inspect.isgeneratorfunction, levels))
        self.is_async_generator = any(map(inspect.isasyncgenfunction, levels))

    @property
    def location(self) -> str:
        """File and line."""
        code = getattr(self._inner, "__code__", None)
        return (
            f"{code.co_filename}:{code.co_firstlineno}" if code else str(getattr(self._inner, "__module__", "?"))
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.location})"

    def parameters(self) -> list[FunctionParameter]:
        """All but `*args` and `**kwargs`."""
        return [
            FunctionParameter(found.name, self._hint(found), found.default, found.kind not in _POSITIONAL)
            for found in self._signature().parameters.values()
            if found.kind not in _VARIADIC
        ]

    def returns(self) -> Any:
        """The annotation of what it returns."""
        return self._resolved("its return type", self._signature().return_annotation)

    def _signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self.function)
        except (ValueError, NameError) as error:
            raise TypeError(f"{self}: its signature cannot be read: {error}") from error

    def _hint(self, found: inspect.Parameter) -> Any:
        if found.annotation is EMPTY:
            return EMPTY
        try:
            return self._resolved(f"parameter {found.name!r}", found.annotation)
        except TypeError:
            if found.default is EMPTY:
                raise
            return EMPTY

    def _resolved(self, of: str, annotation: Any) -> Any:
        """An annotation with its strings replaced by what they name, and `Annotated` by its type."""
        if annotation is EMPTY:
            return EMPTY
        holder = SimpleNamespace(__annotations__={"it": annotation})
        try:
            return get_type_hints(holder, globalns=getattr(self._inner, "__globals__", {}))["it"]
        except Exception as error:
            raise TypeError(
                f"{self}, {of}: the annotation {annotation!r} cannot be resolved ({error}): what it names has to "
                "be there when the program runs, in the module itself and not only under TYPE_CHECKING"
            ) from error

    def calls(self, parameter: FunctionParameter, method: str) -> bool:
        """Whether its body can be seen to ask a parameter for a method; other names for it are not followed."""
        code = getattr(self._inner, "__code__", None)
        return code is not None and any(
            asked.opname in ("LOAD_METHOD", "LOAD_ATTR")
            and asked.argval == method
            and _loads_variable(loaded, parameter.name, within=part is code)
            for part in _codes(code)
            for loaded, asked in pairwise(dis.get_instructions(part))
        )

    def wrong(self, parameter: FunctionParameter, problem: str) -> TypeError:
        """The error that says what is wrong with a parameter, and where it stands."""
        return TypeError(f"{self}, parameter {parameter.name!r}: {problem}")


def _callable(given: Any) -> Function:
    function = given.__func__ if isinstance(given, staticmethod) else given
    if isinstance(function, type):
        raise TypeError(f"{function.__qualname__} is a class: give a function, or an instance that can be called")
    if isinstance(function, classmethod):
        raise TypeError(f"{function.__func__.__qualname__} is a class method: give it from outside of the class")
    if not callable(function):
        raise TypeError(f"a function is wanted, not {function!r}")
    found: Function = function
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _loads_variable(step: dis.Instruction, name: str, *, within: bool) -> bool:
    """Whether a step loads a function's variable, within the function itself or one that is defined in it."""
    kinds = ("LOAD_FAST", "LOAD_DEREF") if within else ("LOAD_DEREF",)
    # Newer versions of Python may load two at a time.
    last = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return step.opname.startswith(kinds) and last == name


def _wrapping_levels(function: Any) -> Iterator[Any]:
    """What is called, then what is beneath it; the last has the code, the annotations and their module."""
    while True:
        yield function
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, staticmethod) or inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function):
            return
        else:
            function = type(function).__call__


FindMessageClass: TypeAlias = Callable[[type], MessageClass | None]
"""Finds what a class was registered as."""

_MILEPOST_CLASSES = (Message, Transaction, Context)
_NOT_PROVIDED = (str, int, float, bool, bytes, dict, list, tuple, set, frozenset, object, type, NoneType, Any)


class ParameterSource(Enum):
    """Where the value of a parameter comes from."""

    MESSAGE = "the message"
    PAYLOAD = "the payload"
    CONTEXT = "the context"
    TRANSACTION = "the transaction"
    PROVIDER = "a provider"
    """if there is one; else the parameter's default"""
    DEFAULT = "the parameter's default"


@dataclass(frozen=True)
class AskedParameter:
    """A parameter, and what is meant by it. `hint` is what a provider has to give."""

    parameter: FunctionParameter
    source: ParameterSource
    hint: Any = None
    classes: tuple[type, ...] = ()
    """The payload's, if they are named."""
    batch: bool = False


@dataclass(frozen=True)
class Signature:
    """What a handler asks for."""

    described: UserFunction
    asked: tuple[AskedParameter, ...]
    types: frozenset[str] | None
    """The stored types of the payloads it names, older names too; None if it takes any message."""
    batch: bool
    """Whether it takes a list of messages."""

    @classmethod
    def of(cls, function: Any, classes: FindMessageClass, provided: Container[Any] = ()) -> "Signature":
        """Reads a handler's annotations; what nobody can give is refused.

        `provided` has what providers are known to give. Of other classes one may still be declared.
        """
        described = UserFunction(function)
        if described.is_generator or described.is_async_generator:
            raise TypeError(f"{described}: a handler cannot be a generator: it has no use for what is yielded")
        parameters = described.parameters()
        reader = _ParameterReader(described, classes, provided, _unannotated_message(parameters))
        asked = tuple(map(reader.read, parameters))
        _refuse_nothing(described, asked)
        _refuse_contradictions(described, asked)
        return cls(described, asked, _stored_types(asked, classes), any(each.batch for each in asked))


@dataclass(frozen=True)
class _ParameterReader:
    """Finds what the parameters of one handler mean."""

    described: UserFunction
    classes: FindMessageClass
    provided: Container[Any]
    bare: FunctionParameter | None
    """The parameter without annotation that gets the message."""

    def read(self, parameter: FunctionParameter) -> AskedParameter:
        """What a parameter means."""
        if parameter is self.bare:
            return AskedParameter(parameter, ParameterSource.MESSAGE)
        if parameter.hint is EMPTY:
            return self._unannotated(parameter)
        if parameter.hint in self.provided:
            return AskedParameter(parameter, ParameterSource.PROVIDER, parameter.hint)
        if get_origin(parameter.hint) is list:
            return self._batch(parameter, get_args(parameter.hint)[0])
        return self._subject(parameter, parameter.hint) or self._other(parameter)

    def _unannotated(self, parameter: FunctionParameter) -> AskedParameter:
        if not parameter.required:
            return AskedParameter(parameter, ParameterSource.DEFAULT)
        if parameter.name == "self":
            raise self._wrong(
                parameter, 'this is a method of no object: write mp.subscription("name", …)(object.method)'
            )
        raise self._wrong(
            parameter, "it has no annotation: write Message, the class of a payload, or what is provided"
        )

    def _batch(self, parameter: FunctionParameter, element: Any) -> AskedParameter:
        found = self._subject(parameter, element)
        if found is not None:
            return AskedParameter(parameter, found.source, classes=found.classes, batch=True)
        if not parameter.required:
            return AskedParameter(parameter, ParameterSource.PROVIDER, parameter.hint)
        self._refuse_payload_like(parameter, element)
        raise self._wrong(
            parameter, f"a list of {hint_name(element)} is no batch: write list[Message], or list[…] of a payload"
        )

    def _subject(self, parameter: FunctionParameter, hint: Any) -> AskedParameter | None:
        """A message or a payload, if that is what is asked for."""
        if hint is Message:
            return AskedParameter(parameter, ParameterSource.MESSAGE)
        if get_origin(hint) is Message:
            (inner,) = get_args(hint)
            if inner is Any:
                return AskedParameter(parameter, ParameterSource.MESSAGE)
            classes = self._payloads(inner)
            if not classes:
                self._refuse_payload_like(parameter, inner)
                raise self._wrong(
                    parameter, f"{hint_name(inner)} is no registered class: decorate it with @mp.message()"
                )
            return AskedParameter(parameter, ParameterSource.MESSAGE, classes=classes)
        classes = self._payloads(hint)
        return AskedParameter(parameter, ParameterSource.PAYLOAD, classes=classes) if classes else None

    def _payloads(self, hint: Any) -> tuple[type, ...]:
        """The registered classes that a hint names; none if it names anything else."""
        named = get_args(hint) if is_union(hint) else (hint,)
        if all(is_class(cls) and self.classes(cls) is not None for cls in named):
            return named
        return ()

    def _other(self, parameter: FunctionParameter) -> AskedParameter:
        hint = parameter.hint
        if hint is Context:
            return AskedParameter(parameter, ParameterSource.CONTEXT)
        if hint is Transaction:
            return self._transaction(parameter)
        if is_union(hint):
            return self._union(parameter)
        if parameter.required:
            self._refuse_payload_like(parameter, hint)
            self._refuse_other_batch(parameter, hint)
            refuse_values(self.described, parameter)
        return AskedParameter(parameter, ParameterSource.PROVIDER, hint)

    def _transaction(self, parameter: FunctionParameter) -> AskedParameter:
        if not self.described.is_async:
            raise self._wrong(parameter, "a Transaction is used with await: write `async def` for the handler")
        return AskedParameter(parameter, ParameterSource.TRANSACTION)

    def _union(self, parameter: FunctionParameter) -> AskedParameter:
        members = get_args(parameter.hint)
        rest = [member for member in members if member is not NoneType]
        ours = [member for member in rest if member in _MILEPOST_CLASSES or self._subject(parameter, member)]
        if len(rest) < len(members) and (ours or parameter.required):
            inner = " | ".join(map(hint_name, rest))
            raise self._wrong(parameter, f"it is always given, or never: write {inner} instead of {inner} | None")
        if not parameter.required:
            return AskedParameter(parameter, ParameterSource.PROVIDER, without_none(parameter.hint))
        for member in rest:
            self._refuse_payload_like(parameter, member)
        raise self._wrong(
            parameter,
            f"{hint_name(parameter.hint)} is not a choice of payloads: write A | B of registered classes, "
            "Message[A | B], or Message",
        )

    def _refuse_other_batch(self, parameter: FunctionParameter, hint: Any) -> None:
        is_collection = getattr(get_origin(hint), "__module__", None) in ("builtins", "collections.abc")
        if is_collection and any(self._subject(parameter, element) for element in get_args(hint)):
            raise self._wrong(parameter, f"for a batch write list[…] instead of {hint_name(hint)}")

    def _refuse_payload_like(self, parameter: FunctionParameter, hint: Any) -> None:
        for cls in get_args(hint) if is_union(hint) else (hint,):
            if is_class(cls) and self.classes(cls) is None and _looks_like_payload(cls):
                raise self._wrong(
                    parameter,
                    f"{cls.__name__} is not registered: decorate it with @mp.message(), or declare the provider "
                    "that gives it before this",
                )

    def _wrong(self, parameter: FunctionParameter, problem: str) -> TypeError:
        return self.described.wrong(parameter, problem)


def is_union(hint: Any) -> bool:
    """Whether it is `A | B`."""
    return get_origin(hint) in (Union, UnionType)


def without_none(hint: Any) -> Any:
    """The `A` of `A | None`, which a parameter with a default may say; any other hint as it is."""
    rest = [member for member in get_args(hint) if member is not NoneType] if is_union(hint) else []
    return rest[0] if len(rest) == 1 else hint


def refuse_values(described: UserFunction, parameter: FunctionParameter) -> None:
    """Refuses what is no class that a provider would give, and is not provided."""
    hint = parameter.hint
    origin = get_origin(hint) or hint
    for own in _MILEPOST_CLASSES:
        if getattr(origin, "__name__", None) == own.__name__ and origin is not own:
            raise described.wrong(
                parameter, f"this is {hint_name(hint)} of {origin.__module__}, not that of milepost"
            )
    if origin in _NOT_PROVIDED or not (is_class(origin) or hasattr(hint, "__supertype__")):
        raise described.wrong(
            parameter,
            f"nobody provides {hint_name(hint)}: write Message, the class of a payload, list[…] of one of them, "
            "Transaction, Context, or what a provider returns",
        )


def hint_name(hint: Any) -> str:
    """A hint as a person would write it."""
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def is_class(hint: Any) -> bool:
    """Whether it is a class, without parameters."""
    return isinstance(hint, type) and get_origin(hint) is None


def _looks_like_payload(cls: type) -> bool:
    return is_dataclass(cls) or issubclass(cls, msgspec.Struct) or hasattr(cls, "model_dump_json")


def _unannotated_message(parameters: list[FunctionParameter]) -> FunctionParameter | None:
    """The only positional parameter, if it has no annotation: it can only be the message."""
    positional = [each for each in parameters if each.required and not each.keyword_only]
    return positional[0] if len(positional) == 1 and positional[0].hint is EMPTY else None


def _refuse_nothing(described: UserFunction, asked: tuple[AskedParameter, ...]) -> None:
    """One that is called with nothing would count every message as handled."""
    if all(each.source is ParameterSource.DEFAULT for each in asked):
        raise TypeError(
            f"{described}: it asks for no message: annotate a parameter with Message, or the class of a payload; "
            "a decorator around it needs functools.wraps"
        )


def _refuse_contradictions(described: UserFunction, asked: tuple[AskedParameter, ...]) -> None:
    payloads = [each for each in asked if each.source is ParameterSource.PAYLOAD]
    messages = [each for each in asked if each.source is ParameterSource.MESSAGE]
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


def _stored_types(asked: tuple[AskedParameter, ...], classes: FindMessageClass) -> frozenset[str] | None:
    declared = [classes(cls) for each in asked for cls in each.classes]
    names = frozenset(name for found in declared if found for name in (found.name, *found.aliases))
    return names or None
