"""Statements that lock several rows, and may meet others that lock them in another order."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from milepost.errors import Unavailable

T = TypeVar("T")

ATTEMPTS = 5
"""How often a statement may lose before that is an error."""


async def despite_deadlocks(run: Callable[[], Awaitable[T]]) -> T:
    """What a statement in a transaction of its own returns: one that PostgreSQL ended for others runs again."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await run()
        except Unavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
    return await run()
