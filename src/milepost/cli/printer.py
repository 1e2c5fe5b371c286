"""Messages on standard output: JSON for programs, aligned lines for people."""

import sys
from typing import Any

import msgspec
from rich.text import Text

from milepost.cli.output import console, visible, write_json
from milepost.log.message import Message, Property
from milepost.log.reader import Page

_HEADINGS = (f"{'POSITION':>9}", f"{'TIME':<19}", f"{'STREAM':<20}", f"{'VERSION':>7}", f"{'TYPE':<18}", "DATA")
_STYLES = ("bold", "dim", "cyan", "dim", "green", "", "yellow")


class Printer:
    """Prints pages of messages; in colour and cut to the width on a terminal only."""

    def __init__(self, as_json: bool) -> None:
        self._console = console()
        self.print = (
            self._print_json if as_json else self._print_lines if sys.stdout.isatty() else self._print_plain
        )
        self._begun = False

    def _print_json(self, page: Page) -> None:
        for message in page:
            write_json(as_line(message))

    def _print_plain(self, page: Page) -> None:
        for message in page:
            sys.stdout.write(" ".join(_columns(message)).rstrip() + "\n")

    def _print_lines(self, page: Page) -> None:
        if not self._begun:
            self._begun = True
            self._line(Text(" ".join(_HEADINGS), style="dim"))
        for message in page:
            columns = zip(_columns(message), _STYLES, strict=True)
            self._line(Text(" ").join(Text(text, style=style) for text, style in columns))

    def _line(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ellipsis", crop=True)


def _columns(message: Message[Any]) -> tuple[str, ...]:
    properties = " ".join(f"{name}={_word(value)}" for name, value in message.properties.items())
    return (
        f"{message.position:>9}",
        f"{message.time.astimezone():%Y-%m-%d %H:%M:%S}",
        f"{visible(message.stream):<20}",
        f"{message.version:>7}",
        f"{visible(message.type):<18}",
        visible(message.raw),
        visible(properties),
    )


def as_line(message: Message[Any]) -> dict[str, Any]:
    """What `milepost append` understands, and where and when the message was."""
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


def _word(value: Property) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
