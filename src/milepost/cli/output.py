"""The output of the command: tables and messages for people, JSON for programs, progress bars."""

import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from milepost.log.message import Message, Property
from milepost.log.query import Page


def format_age(seconds: float) -> str:
    """Return seconds in the largest unit of which there are at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"


UNLIMITED_COLUMNS = 10_000
"""The width of a table that is not for a terminal: nothing is cut or folded."""


def console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is, in colour on a terminal only."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNLIMITED_COLUMNS
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def new_table(*columns: str) -> Table:
    """Return a plain table with these headings."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_table(rows: Table) -> None:
    """Print a table. For a program, leave out the blanks that fill its last column."""
    screen = console()
    if screen.is_terminal:
        screen.print(rows)
        return
    with screen.capture() as printed:
        screen.print(rows)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def print_json(value: Any) -> None:
    """Print a JSON value on a line of standard output, in UTF-8."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def visible(text: str) -> str:
    """Return the text on one line, with what a terminal would obey, or not show, spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


STATUS_STYLES = {
    "running": "green",
    "paused": "yellow",
    "waiting": "yellow",
    "stalled": "bold red",
    "stopped": "bold red",
}
"""The style of each status of a subscription."""


def settings_table(settings: Mapping[str, Any]) -> Table:
    """Return a table of the settings of a subscription that was created."""
    rows = new_table("setting", "value")
    for name, value in settings.items():
        rows.add_row(name, visible(_setting_in_words(value)))
    return rows


def _setting_in_words(value: Any) -> str:
    match value:
        case None:
            return "none"
        case dict():
            return ", ".join(f"{name} {_setting_in_words(part)}" for name, part in value.items())
        case list() | tuple():
            return ", ".join(map(_setting_in_words, value))
        case int() | float():
            return f"{value:,}".removesuffix(".0")
        case _:
            return str(value)


SHOW_AFTER_SECONDS = 2.0
"""Seconds that something may take without a bar."""


class ProgressBar:
    """A progress bar on standard error: it appears after two seconds, on a terminal only, and goes at the end.

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
        self._timer = threading.Timer(SHOW_AFTER_SECONDS, self._bar.start)
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
        """Show how much is done, and a note."""
        self._bar.update(self._task, completed=done, note=note)


_MESSAGE_HEADINGS = (
    f"{'POSITION':>9}",
    f"{'TIME':<19}",
    f"{'STREAM':<20}",
    f"{'VERSION':>7}",
    f"{'TYPE':<18}",
    "DATA",
)
_MESSAGE_STYLES = ("bold", "dim", "cyan", "dim", "green", "", "yellow")


class MessagePrinter:
    """A printer of messages. On a terminal they are coloured and cut to the width."""

    def __init__(self, as_json: bool) -> None:
        self._console = console()
        self.print = (
            self._print_json if as_json else self._print_lines if sys.stdout.isatty() else self._print_plain
        )
        self._begun = False

    def _print_json(self, page: Page) -> None:
        for message in page:
            print_json(message_as_dict(message))

    def _print_plain(self, page: Page) -> None:
        for message in page:
            sys.stdout.write(" ".join(_message_columns(message)).rstrip() + "\n")

    def _print_lines(self, page: Page) -> None:
        if not self._begun:
            self._begun = True
            self._line(Text(" ".join(_MESSAGE_HEADINGS), style="dim"))
        for message in page:
            columns = zip(_message_columns(message), _MESSAGE_STYLES, strict=True)
            self._line(Text(" ").join(Text(text, style=style) for text, style in columns))

    def _line(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ellipsis", crop=True)


def _message_columns(message: Message[Any]) -> tuple[str, ...]:
    properties = " ".join(f"{name}={_property_in_words(value)}" for name, value in message.properties.items())
    return (
        f"{message.position:>9}",
        f"{message.time.astimezone():%Y-%m-%d %H:%M:%S}",
        f"{visible(message.stream):<20}",
        f"{message.version:>7}",
        f"{visible(message.type):<18}",
        visible(message.raw),
        visible(properties),
    )


def message_as_dict(message: Message[Any]) -> dict[str, Any]:
    """Return a message as `milepost append` takes it, with its position, version and time."""
    return {
        "position": message.position,
        "stream": message.stream,
        "version": message.version,
        "id": message.id,
        "type": message.type,
        "time": message.time,
        "data": msgspec.Raw(message.raw.encode()),
        "properties": message.properties,
        "metadata": message.metadata,
    }


def _property_in_words(value: Property) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
