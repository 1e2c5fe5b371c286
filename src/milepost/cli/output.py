"""What is printed: tables for people, JSON for programs."""

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

UNLIMITED = 10_000
"""The width of a table that is not for a terminal: nothing is cut or folded."""


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is; in colour on a terminal only."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNLIMITED
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def table(*columns: str) -> Table:
    """A plain table with these headings."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(rows: Table) -> None:
    """Prints a table; for a program without the blanks that fill its last column."""
    screen = console()
    if screen.is_terminal:
        screen.print(rows)
        return
    with screen.capture() as printed:
        screen.print(rows)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def write_json(value: Any) -> None:
    """One JSON value on a line of standard output, in UTF-8."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def visible(text: str) -> str:
    """The text with what a terminal would obey, or not show, spelled out; it stays on one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
