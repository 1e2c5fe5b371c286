"""One call with what providers give: made before it, in order, and finished after it, in reverse."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import copy_context
from typing import Any, Final, TypeAlias

from milepost.engine.outcomes import EndsProgram, carried
from milepost.engine.providers import Provider, Values

LOOP: Final = "event loop"
"""Under which a plain call has the event loop that async providers run on."""

Opened: TypeAlias = Generator[Any, None, None] | AsyncGenerator[Any, None]
Wait: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
Run: TypeAlias = Callable[..., Any]
"""Calls a plain function with its arguments."""


class Provision:
    """Calls a function with what its providers give.

    Generators get the exception of a call that failed, so that they can undo; that they swallow it changes
    nothing. What another raises instead takes its place.
    """

    def __init__(self, providers: Sequence[Provider], function: Callable[[Values], Any]) -> None:
        self._providers = providers
        self._function = function

    async def run(self, values: Values) -> Any:
        """Everything on the event loop, in one task."""

        async def call() -> Any:
            return await self._function(values)

        return await self._run(values, call, _awaited, _called)

    def run_plain(self, values: Values) -> Any:
        """Everything in this thread, but for async providers: those run on the event loop.

        All share one copy of the context variables. A context is in one thread at a time, so this one enters it
        for each step alone.
        """
        variables = copy_context()

        async def call() -> Any:
            return variables.run(self._function, values)

        async def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return await asyncio.create_task(carried(coroutine), context=variables)

        async def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
            try:
                return asyncio.run_coroutine_threadsafe(on_loop(coroutine), values[LOOP]).result()
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
        self, values: Values, call: Callable[[], Coroutine[Any, Any, Any]], wait: Wait, run: Run
    ) -> Any:
        opened: list[tuple[Provider, Opened]] = []
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


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


async def _enter(
    provider: Provider, values: Values, opened: list[tuple[Provider, Opened]], wait: Wait, run: Run
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


async def _leave(provider: Provider, generator: Any, failure: BaseException | None, wait: Wait, run: Run) -> None:
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
