"""What a program gives to its handlers beside messages: found by type, made for a call, finished after it."""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextvars import copy_context
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin

from milepost.engine.declare.context import Context, Transaction
from milepost.engine.declare.outcomes import EndsProgram, carry_program_end
from milepost.engine.declare.signature import (
    EMPTY,
    AskedParameter,
    FindMessageClass,
    Function,
    FunctionParameter,
    ParameterSource,
    UserFunction,
    hint_name,
    is_class,
    is_union,
    refuse_values,
    without_none,
)
from milepost.log.message import Message

F = TypeVar("F", bound=Function)

CallValues: TypeAlias = dict[Any, Any]
"""What a call has so far: what providers gave, by its type, and what was known before, by its source."""

_YIELDING = (Iterator, Iterable, Generator)
_YIELDING_ASYNC = (AsyncIterator, AsyncIterable, AsyncGenerator)


class Provider:
    """A function that gives something, and what it asks for itself."""

    def __init__(self, function: Any, classes: FindMessageClass) -> None:
        self.described = UserFunction(function)
        self.is_generator = self.described.is_generator
        self.is_async_generator = self.described.is_async_generator
        self.is_async = self.described.is_async or self.is_async_generator
        self._refuse_wrapped_generator()
        self.gives = self._given()
        self._refuse_reserved(classes)
        self.asked = [self._asked(parameter, classes) for parameter in self.described.parameters()]

    def call(self, values: CallValues) -> Any:
        """Calls the function with what it asks for, which is there already."""
        positional, named = call_arguments(self.asked, values)
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

    def _refuse_reserved(self, classes: FindMessageClass) -> None:
        gives = self.gives
        if gives in (Any, NoneType, object):
            raise TypeError(f"{self.described}: a provider is found by its return type, and {gives} tells nothing")
        if is_union(gives):
            raise TypeError(f"{self.described}: a provider gives one type, not {gives}")
        if gives in (Context, Transaction) or Message in (gives, get_origin(gives)):
            raise TypeError(f"{self.described}: {gives.__name__} comes from Milepost itself")
        if is_class(gives) and classes(gives) is not None:
            raise TypeError(f"{self.described}: {gives.__name__} is the class of a payload")

    def _asked(self, parameter: FunctionParameter, classes: FindMessageClass) -> AskedParameter:
        hint = parameter.hint
        own = {
            Message: ParameterSource.MESSAGE,
            Context: ParameterSource.CONTEXT,
            Transaction: ParameterSource.TRANSACTION,
        }
        if hint is EMPTY:
            if parameter.required:
                raise self.described.wrong(
                    parameter, "it has no annotation: write Message, Context or what is provided"
                )
            return AskedParameter(parameter, ParameterSource.DEFAULT)
        if hint in own:
            return AskedParameter(parameter, own[hint])
        if get_origin(hint) is Message or (is_class(hint) and classes(hint) is not None):
            raise self.described.wrong(parameter, "a provider serves handlers of many payloads: ask for Message")
        if parameter.required and is_union(hint):
            raise self.described.wrong(parameter, f"a provider gives one type, not {hint}")
        return AskedParameter(parameter, ParameterSource.PROVIDER, without_none(hint))


class Providers:
    """All providers of a program, by what they give."""

    def __init__(self, classes: FindMessageClass) -> None:
        self._classes = classes
        self._by_type: dict[Any, Provider] = {}

    def provide(self, function: F) -> F:
        """Declares a provider; the function stays as it is."""
        provider = Provider(function, self._classes)
        taken = self._by_type.get(provider.gives)
        if taken is not None:
            raise ValueError(
                f"{provider.described}: {hint_name(provider.gives)} is provided by {taken.described} already"
            )
        self._by_type[provider.gives] = provider
        return function

    def adopt(self, other: "Providers", instead: Mapping[Any, Any]) -> None:
        """Gives from now on what another gives, and of some types these objects instead."""
        for hint in instead:
            if hint not in other:
                known = ", ".join(map(hint_name, other._by_type)) or "nothing"
                raise ValueError(
                    f"provide: nobody provides {hint_name(hint)} that could be replaced (provided: {known})"
                )
        given = {hint: Provider(_function_giving(hint, value), self._classes) for hint, value in instead.items()}
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

    def plan(self, described: UserFunction, asked: Iterable[AskedParameter]) -> list[Provider]:
        """The providers that are needed, each after those that it needs itself."""
        planned: dict[Any, Provider] = {}
        for each in asked:
            self._visit(described, each, planned, ())
        return list(planned.values())

    def _visit(
        self, asking: UserFunction, each: AskedParameter, planned: dict[Any, Provider], above: tuple[Any, ...]
    ) -> None:
        if each.source is not ParameterSource.PROVIDER or each.hint in planned:
            return
        if each.hint not in self:
            if each.parameter.required:
                raise self._missing(asking, each)
            return
        chain = (*above, each.hint)
        if each.hint in above:
            circle = " needs ".join(map(hint_name, chain[chain.index(each.hint) :]))
            raise TypeError(f"{asking}: providers need each other: {circle}")
        provider = self._by_type[each.hint]
        for needed in provider.asked:
            self._visit(provider.described, needed, planned, chain)
        planned[each.hint] = provider

    def _missing(self, asking: UserFunction, each: AskedParameter) -> TypeError:
        try:
            refuse_values(asking, each.parameter)
        except TypeError as error:
            return error
        known = ", ".join(map(hint_name, self._by_type)) or "nothing"
        return asking.wrong(
            each.parameter,
            f"nobody provides {hint_name(each.hint)}: declare @mp.provide on a function that returns it "
            f"(provided: {known}), or decorate it with @mp.message() if it is a payload",
        )


def _function_giving(hint: Any, value: Any) -> Function:
    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    return give


def call_arguments(asked: Iterable[AskedParameter], values: CallValues) -> tuple[list[Any], dict[str, Any]]:
    """The positional arguments of a call, and those by name."""
    positional, named = [], {}
    for each in asked:
        if each.parameter.keyword_only:
            named[each.parameter.name] = _argument_value(each, values)
        else:
            positional.append(_argument_value(each, values))
    return positional, named


def _argument_value(each: AskedParameter, values: CallValues) -> Any:
    if each.source is ParameterSource.PROVIDER:
        return values.get(each.hint, each.parameter.default)
    return each.parameter.default if each.source is ParameterSource.DEFAULT else values[each.source]


EVENT_LOOP: Final = "event loop"
"""Under which a plain call has the event loop that async providers run on."""

OpenGenerator: TypeAlias = Generator[Any, None, None] | AsyncGenerator[Any, None]
WaitFor: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
CallPlain: TypeAlias = Callable[..., Any]
"""Calls a plain function with its arguments."""


class ProvidedCall:
    """Calls a function with what its providers give.

    Generators get the exception of a call that failed, so that they can undo; that they swallow it changes
    nothing. What another raises instead takes its place.
    """

    def __init__(self, providers: Sequence[Provider], function: Callable[[CallValues], Any]) -> None:
        self._providers = providers
        self._function = function

    async def run(self, values: CallValues) -> Any:
        """Everything on the event loop, in one task."""

        async def call() -> Any:
            return await self._function(values)

        return await self._run(values, call, _await_here, _call_here)

    def run_plain(self, values: CallValues) -> Any:
        """Everything in this thread, but for async providers: those run on the event loop.

        All share one copy of the context variables. A context is in one thread at a time, so this one enters it
        for each step alone.
        """
        variables = copy_context()

        async def call() -> Any:
            return variables.run(self._function, values)

        async def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return await asyncio.create_task(carry_program_end(coroutine), context=variables)

        async def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
            try:
                return asyncio.run_coroutine_threadsafe(on_loop(coroutine), values[EVENT_LOOP]).result()
            except EndsProgram as ending:
                raise ending.error from None

        # Nothing in it suspends: what would, was waited for in the loop.
        coroutine = self._run(values, call, wait, variables.run)
        try:
            coroutine.send(None)
        except StopIteration as finished:
            return finished.value
        raise AssertionError("a plain call tried to wait")

    async def _run(
        self, values: CallValues, call: Callable[[], Coroutine[Any, Any, Any]], wait: WaitFor, run: CallPlain
    ) -> Any:
        opened: list[tuple[Provider, OpenGenerator]] = []
        result, failure = None, None
        try:
            for provider in self._providers:
                values[provider.gives] = await _enter(provider, values, opened, wait, run)
            result = await call()
        except BaseException as error:  # a cancelled call is undone as well
            failure = error
        for provider, generator in reversed(opened):
            try:
                await _leave(provider, generator, failure, wait, run)
            except BaseException as error:
                failure = error
        try:
            if failure is not None:
                raise failure
            return result
        finally:
            # An exception that is known to its own frame lives until the next garbage collection.
            failure = None


async def _await_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


def _call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


async def _enter(
    provider: Provider,
    values: CallValues,
    opened: list[tuple[Provider, OpenGenerator]],
    wait: WaitFor,
    run: CallPlain,
) -> Any:
    made = run(provider.call, values)
    if provider.is_async_generator:
        value = await wait(_first_async(provider, made))
    elif provider.is_generator:
        value = run(_first, provider, made)
    else:
        return await wait(made) if provider.is_async else made
    opened.append((provider, made))
    return value


async def _leave(
    provider: Provider, generator: Any, failure: BaseException | None, wait: WaitFor, run: CallPlain
) -> None:
    if provider.is_async_generator:
        await wait(_finish_async(provider, generator, failure))
    else:
        run(_finish, provider, generator, failure)


def _first(provider: Provider, generator: Generator[Any, None, None]) -> Any:
    try:
        return next(generator)
    except StopIteration:
        raise RuntimeError(f"{provider.described} yielded nothing") from None


async def _first_async(provider: Provider, generator: AsyncGenerator[Any, None]) -> Any:
    try:
        return await anext(generator)
    except StopAsyncIteration:
        raise RuntimeError(f"{provider.described} yielded nothing") from None


def _finish(provider: Provider, generator: Generator[Any, None, None], failure: BaseException | None) -> None:
    try:
        if failure is None:
            next(generator)
        else:
            generator.throw(failure)
    except StopIteration:
        return
    generator.close()
    raise RuntimeError(f"{provider.described} yielded more than once")


async def _finish_async(
    provider: Provider, generator: AsyncGenerator[Any, None], failure: BaseException | None
) -> None:
    try:
        if failure is None:
            await anext(generator)
        else:
            await generator.athrow(failure)
    except StopAsyncIteration:
        return
    await generator.aclose()
    raise RuntimeError(f"{provider.described} yielded more than once")
