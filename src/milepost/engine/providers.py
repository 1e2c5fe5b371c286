"""What a program gives to its handlers beside messages: made for each call, and finished after it."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

from milepost.engine.context import Context
from milepost.engine.described import EMPTY, Described, Function, Parameter
from milepost.engine.signature import (
    Asked,
    Classes,
    Source,
    is_class,
    is_union,
    name_of,
    refuse_values,
    without_none,
)
from milepost.engine.transaction import Transaction
from milepost.log.message import Message

F = TypeVar("F", bound=Function)

Values: TypeAlias = dict[Any, Any]
"""What a call has so far: what providers gave, by its type, and what was known before, by its source."""

_YIELDING = (Iterator, Iterable, Generator)
_YIELDING_ASYNC = (AsyncIterator, AsyncIterable, AsyncGenerator)


class Provider:
    """A function that gives something, and what it asks for itself."""

    def __init__(self, function: Any, classes: Classes) -> None:
        self.described = Described(function)
        self.is_generator = self.described.is_generator
        self.is_async_generator = self.described.is_async_generator
        self.is_async = self.described.is_async or self.is_async_generator
        self._refuse_wrapped_generator()
        self.gives = self._given()
        self._refuse_reserved(classes)
        self.asked = [self._asked(parameter, classes) for parameter in self.described.parameters()]

    def call(self, values: Values) -> Any:
        """Calls the function with what it asks for, which is there already."""
        positional, named = arguments(self.asked, values)
        return self.described.function(*positional, **named)

    def _given(self) -> Any:
        hint = self.described.returns()
        if hint is EMPTY:
            raise TypeError(f"{self.described}: a provider is found by its return type: annotate it")
        wanted = _YIELDING if self.is_generator else _YIELDING_ASYNC if self.is_async_generator else None
        if wanted is None:
            return hint
        if get_origin(hint) not in wanted:
            name = "Iterator" if self.is_generator else "AsyncIterator"
            raise TypeError(f"{self.described}: a generator's return type is {name}[…] of what it yields")
        return get_args(hint)[0]

    def _refuse_wrapped_generator(self) -> None:
        outer = self.described.function
        yields = inspect.isgeneratorfunction(outer) or inspect.isasyncgenfunction(outer)
        if (self.is_generator or self.is_async_generator) and hasattr(outer, "__wrapped__") and not yields:
            raise TypeError(
                f"{self.described}: a provider is the generator function itself: take the decorator off "
                "(@contextmanager is not needed)"
            )

    def _refuse_reserved(self, classes: Classes) -> None:
        gives = self.gives
        if gives in (Any, NoneType, object):
            raise TypeError(f"{self.described}: a provider is found by its return type, and {gives} tells nothing")
        if is_union(gives):
            raise TypeError(f"{self.described}: a provider gives one type, not {gives}")
        if gives in (Context, Transaction) or Message in (gives, get_origin(gives)):
            raise TypeError(f"{self.described}: {gives.__name__} comes from Milepost itself")
        if is_class(gives) and classes(gives) is not None:
            raise TypeError(f"{self.described}: {gives.__name__} is the class of a payload")

    def _asked(self, parameter: Parameter, classes: Classes) -> Asked:
        hint = parameter.hint
        own = {Message: Source.MESSAGE, Context: Source.CONTEXT, Transaction: Source.TRANSACTION}
        if hint is EMPTY:
            if parameter.required:
                raise self.described.wrong(
                    parameter, "it has no annotation: write Message, Context or what is provided"
                )
            return Asked(parameter, Source.DEFAULT)
        if hint in own:
            return Asked(parameter, own[hint])
        if get_origin(hint) is Message or (is_class(hint) and classes(hint) is not None):
            raise self.described.wrong(parameter, "a provider serves handlers of many payloads: ask for Message")
        if parameter.required and is_union(hint):
            raise self.described.wrong(parameter, f"a provider gives one type, not {hint}")
        return Asked(parameter, Source.PROVIDER, without_none(hint))


class Providers:
    """All providers of a program, by what they give."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._by_type: dict[Any, Provider] = {}

    def provide(self, function: F) -> F:
        """Declares a provider; the function stays as it is."""
        provider = Provider(function, self._classes)
        taken = self._by_type.get(provider.gives)
        if taken is not None:
            raise ValueError(
                f"{provider.described}: {name_of(provider.gives)} is provided by {taken.described} already"
            )
        self._by_type[provider.gives] = provider
        return function

    def adopt(self, other: "Providers", instead: Mapping[Any, Any]) -> None:
        """Gives from now on what another gives, and of some types these objects instead."""
        for hint in instead:
            if hint not in other:
                known = ", ".join(map(name_of, other._by_type)) or "nothing"
                raise ValueError(
                    f"provide: nobody provides {name_of(hint)} that could be replaced (provided: {known})"
                )
        given = {hint: Provider(_giving(hint, value), self._classes) for hint, value in instead.items()}
        self._by_type |= other._by_type | given

    def __contains__(self, hint: object) -> bool:
        try:
            return hint in self._by_type
        except TypeError:
            return False

    def check(self) -> None:
        """Refuses providers that need something that nobody gives, or themselves."""
        for provider in self._by_type.values():
            self.plan(provider.described, provider.asked)

    def plan(self, described: Described, asked: Iterable[Asked]) -> list[Provider]:
        """The providers that are needed, each after those that it needs itself."""
        planned: dict[Any, Provider] = {}
        for each in asked:
            self._visit(described, each, planned, ())
        return list(planned.values())

    def _visit(self, asking: Described, each: Asked, planned: dict[Any, Provider], above: tuple[Any, ...]) -> None:
        if each.source is not Source.PROVIDER or each.hint in planned:
            return
        if each.hint not in self:
            if each.parameter.required:
                raise self._missing(asking, each)
            return
        chain = (*above, each.hint)
        if each.hint in above:
            circle = " needs ".join(map(name_of, chain[chain.index(each.hint) :]))
            raise TypeError(f"{asking}: providers need each other: {circle}")
        provider = self._by_type[each.hint]
        for needed in provider.asked:
            self._visit(provider.described, needed, planned, chain)
        planned[each.hint] = provider

    def _missing(self, asking: Described, each: Asked) -> TypeError:
        try:
            refuse_values(asking, each.parameter)
        except TypeError as error:
            return error
        known = ", ".join(map(name_of, self._by_type)) or "nothing"
        return asking.wrong(
            each.parameter,
            f"nobody provides {name_of(each.hint)}: declare @mp.provide on a function that returns it (provided: "
            f"{known}), or decorate it with @mp.message() if it is a payload",
        )


def _giving(hint: Any, value: Any) -> Function:
    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    return give


def arguments(asked: Iterable[Asked], values: Values) -> tuple[list[Any], dict[str, Any]]:
    """The positional arguments of a call, and those by name."""
    positional, named = [], {}
    for each in asked:
        if each.parameter.keyword_only:
            named[each.parameter.name] = _value(each, values)
        else:
            positional.append(_value(each, values))
    return positional, named


def _value(each: Asked, values: Values) -> Any:
    if each.source is Source.PROVIDER:
        return values.get(each.hint, each.parameter.default)
    return each.parameter.default if each.source is Source.DEFAULT else values[each.source]
