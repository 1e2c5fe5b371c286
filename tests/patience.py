"""Waiting that says, when time is up, what there was instead."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

LONGEST = 1000
"""Characters that are shown of one thing."""

Found = Callable[[], object | Awaitable[object]]
"""What is there by now, in words, or asked for."""


@asynccontextmanager
async def within(seconds: float, found: Found) -> AsyncIterator[None]:
    """Fails when the block takes longer, with what was found by then."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"not within {seconds:g} s; found {await _told(found)}") from None


async def until(holds: Callable[[], bool], seconds: float, found: Found | None = None) -> None:
    """Waits until a condition holds; what is found otherwise is what the condition looks at, unless it is said."""
    async with within(seconds, found or (lambda: looked_at(holds))):
        while not holds():
            await asyncio.sleep(0.02)


async def _told(found: Found) -> object:
    """What there is, though it may be broken itself."""
    try:
        async with asyncio.timeout(5):
            told = found()
            return await told if isinstance(told, Awaitable) else told
    except Exception as error:
        return f"nothing out: {error!r}"


def looked_at(condition: Callable[..., Any]) -> str:
    """The variables that a function has from where it was made."""
    names = getattr(getattr(condition, "__code__", None), "co_freevars", ())
    cells = getattr(condition, "__closure__", None) or ()
    values = [(name, cell.cell_contents) for name, cell in zip(names, cells, strict=True)]
    return ", ".join(f"{name} = {shortened(repr(value))}" for name, value in values) or repr(condition)


def shortened(text: str) -> str:
    """A text, or how it begins and ends."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def last_lines(text: str, count: int = 10) -> str:
    """How a log ends."""
    return "\n".join(text.splitlines()[-count:])
