"""Calls a coroutine function in a copy of the context variables, without a task for each call.

What the handler of one message sets is not there for the next. A task for each call would do that too, and take
several times as long as most calls that wait for nothing. And whoever ends a call that takes too long cancels the
task that it knows.
"""

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, Final

Steps = Generator[Any, Any, Any]
"""A coroutine on its way: each step goes on to where it waits for something."""
Suspended = tuple[Steps, Any]
"""What is left of a call, and what it waits for."""

ENDED: Final = object()
"""What `next` gives for a call that has ended."""


async def call_in_copied_context(call: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    """Call a coroutine function in a copy of the context, and wait until it has ended."""
    variables = copy_context()
    suspended = variables.run(first_step, call, arguments)
    if suspended is not None:
        await other_steps(variables, *suspended)


def first_step(call: Callable[..., Coroutine[Any, Any, Any]], arguments: tuple[Any, ...]) -> Suspended | None:
    """Call a coroutine function up to where it waits for something; return None if it has ended.

    To be called by `Context.run`, with the context in which `other_steps` goes on.
    """
    steps = call(*arguments).__await__()
    waits_for = next(steps, ENDED)
    return None if waits_for is ENDED else (steps, waits_for)


@coroutine
def other_steps(variables: Context, steps: Steps, waits_for: Any) -> Steps:
    """Go on with a call in its context until it has ended. It stays in the task that awaits this."""
    run = variables.run
    error: BaseException | None = None
    while True:
        try:
            yield waits_for
        except BaseException as thrown:
            error = thrown
        # Not in the `except` above: what the call raises would have the other error for its context.
        if error is None:
            waits_for = run(next, steps, ENDED)
            if waits_for is ENDED:
                return
        else:
            try:
                waits_for = run(steps.throw, error)
            except StopIteration:
                return
            finally:
                # An exception that is known to its own frame lives until the next garbage collection.
                error = None
