"""Deliveries on standard output: JSON for programs, tables for people, with the whole error if it is wanted."""

from datetime import datetime
from typing import Any

import msgspec

from milepost.cli.output import console, show, table, visible, write_json
from milepost.cli.printer import as_line
from milepost.dispatch import State
from milepost.engine.deliveries import DeliveryInfo

PAGE = 200
"""Lines of one table."""

_HEADINGS = ("position", "stream", "type", "state", "since", "attempts", "next", "waiting", "reason")


class DeliveryPrinter:
    """Prints deliveries as they come."""

    def __init__(self, *, as_json: bool, verbose: bool) -> None:
        self.printed = 0
        self._add = self._add_json if as_json else self._print_whole if verbose else self._add_line
        self._page: list[DeliveryInfo] = []

    def add(self, delivery: DeliveryInfo) -> None:
        """One more."""
        self.printed += 1
        self._add(delivery)

    def end(self) -> None:
        """There are no more."""
        if not self._page and (self.printed or self._add != self._add_line):
            return
        rows = table(*_HEADINGS)
        for delivery in self._page:
            rows.add_row(*map(visible, _columns(delivery)))
        show(rows)
        self._page.clear()

    def _add_json(self, delivery: DeliveryInfo) -> None:
        message = None if delivery.message is None else as_line(delivery.message)
        write_json({**msgspec.structs.asdict(delivery), "message": message})

    def _add_line(self, delivery: DeliveryInfo) -> None:
        self._page.append(delivery)
        if len(self._page) == PAGE:
            self.end()

    def _print_whole(self, delivery: DeliveryInfo) -> None:
        screen = console()
        values = dict(zip(_HEADINGS, _columns(delivery), strict=True))
        if delivery.message is not None:
            values["data"] = delivery.message.raw
        for name, value in values.items():
            if value:
                screen.print(f"{name:<9} {visible(value)}")
        for line in delivery.error.splitlines():
            screen.print(f"    {visible(line)}")
        screen.print()


def _columns(delivery: DeliveryInfo) -> tuple[str, ...]:
    message: Any = delivery.message
    attempts = str(delivery.attempts)
    if delivery.total != delivery.attempts:
        attempts += f" of {delivery.total}"
    return (
        str(delivery.position),
        delivery.key or "" if message is None else message.stream,
        "no longer in the log" if message is None else message.type,
        delivery.state,
        _time(delivery.since),
        attempts,
        _time(delivery.due) if delivery.state is State.RETRYING else "",
        _waiting(delivery),
        delivery.reason,
    )


def _waiting(delivery: DeliveryInfo) -> str:
    if delivery.waiting_behind is None:
        return ""
    if delivery.state is State.WAITING:
        return f"behind {delivery.waiting_behind}"
    return f"{delivery.waiting_behind:,}" if delivery.waiting_behind else ""


def _time(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"
