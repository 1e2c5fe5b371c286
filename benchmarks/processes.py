"""Processes that are told what to do through pipes, all at once."""

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Self

PATIENCE = 60.0
"""Seconds beyond what was asked for after which a process counts as lost."""

Work = Callable[..., Coroutine[Any, Any, None]]
"""What a process does: given its pipe, its number and what all of them are given, it sends one answer when it is
ready and one to each order, and ends when the order is None."""


class Processes:
    """Several processes that do the same work."""

    def __init__(self, size: int, work: Work, *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pipes]
        self._their_ends = [theirs for _, theirs in pipes]
        self._processes = [
            context.Process(target=_run, args=(work, theirs, number, *given), daemon=True)
            for number, theirs in enumerate(self._their_ends)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        # With the other end open here too, a process that dies would not be noticed.
        for pipe in self._their_ends:
            pipe.close()
        self.receive(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()

    def send(self, order: Any) -> None:
        """The same order for all of them."""
        for pipe in self._pipes:
            pipe.send(order)

    def receive(self, timeout: float) -> list[Any]:
        """One answer of each."""
        return [_receive(pipe, timeout) for pipe in self._pipes]


def _receive(pipe: Connection, timeout: float) -> Any:
    if not pipe.poll(timeout):
        raise TimeoutError(f"a process said nothing for {timeout:.0f} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise RuntimeError("a process ended before its time") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _run(work: Work, pipe: Connection, number: int, *given: Any) -> None:
    with suppress(KeyboardInterrupt, EOFError):
        try:
            asyncio.run(work(pipe, number, *given))
        except Exception as error:
            pipe.send(RuntimeError(f"a process failed: {error!r}"))
