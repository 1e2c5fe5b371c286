"""A progress bar for what takes long."""

import threading
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from milepost.cli.output import console

SHOW_AFTER = 2.0
"""Seconds that something may take without a bar."""


class ProgressBar:
    """Shows itself on standard error after two seconds, on a terminal only, and goes when it ends.

    `total` is in whatever unit `advance_to` uses; without it the bar only shows that something goes on.
    """

    def __init__(self, what: str, total: float | None = None, *, shown: bool = True) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%" if total else ""),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._shown = shown and self._bar.console.is_terminal
        self._task = self._bar.add_task(what, total=total, note="")
        self._timer = threading.Timer(SHOW_AFTER, self._bar.start)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._shown:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()
        if self._bar.live.is_started:
            self._bar.stop()

    def advance_to(self, done: float, note: str = "") -> None:
        """Tells how much is done, and something about it."""
        self._bar.update(self._task, completed=done, note=note)
