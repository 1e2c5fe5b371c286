"""A callable that a user gave: its name, where it stands, what its annotations say."""

import dis
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import CodeType, SimpleNamespace
from typing import Any, Final, TypeAlias, get_type_hints

EMPTY: Final = inspect.Parameter.empty
"""No annotation, or no default."""

Function: TypeAlias = Callable[..., Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Parameter:
    """A parameter as it is written."""

    name: str
    hint: Any
    default: Any
    keyword_only: bool

    @property
    def required(self) -> bool:
        return self.default is EMPTY


class Described:
    """A function or another callable: its name, where it is, what it asks for, how it is called."""

    def __init__(self, given: Any) -> None:
        self.function: Function = _callable(given)
        levels = list(_levels(self.function))
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

    def parameters(self) -> list[Parameter]:
        """All but `*args` and `**kwargs`."""
        return [
            Parameter(found.name, self._hint(found), found.default, found.kind not in _POSITIONAL)
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

    def calls(self, parameter: Parameter, method: str) -> bool:
        """Whether its body can be seen to ask a parameter for a method; other names for it are not followed."""
        code = getattr(self._inner, "__code__", None)
        return code is not None and any(
            asked.opname in ("LOAD_METHOD", "LOAD_ATTR")
            and asked.argval == method
            and _loads(loaded, parameter.name, within=part is code)
            for part in _codes(code)
            for loaded, asked in pairwise(dis.get_instructions(part))
        )

    def wrong(self, parameter: Parameter, problem: str) -> TypeError:
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


def _loads(step: dis.Instruction, name: str, *, within: bool) -> bool:
    """Whether a step loads a function's variable, within the function itself or one that is defined in it."""
    kinds = ("LOAD_FAST", "LOAD_DEREF") if within else ("LOAD_DEREF",)
    # Newer versions of Python may load two at a time.
    last = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return step.opname.startswith(kinds) and last == name


def _levels(function: Any) -> Iterator[Any]:
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
