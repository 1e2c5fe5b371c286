"""The screen of the demo, and its state in one line for outputs that are no terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from milepost.cli.demo.shop import Shop
from milepost.cli.demo.subscribers import Courier, NaiveReader
from milepost.cli.output import STATUS_STYLES, format_age, visible
from milepost.engine.operate.info import SubscriptionInfo

INTRODUCTION = (
    "A shop appends orders, payments and parcels to a log on PostgreSQL; subscriptions follow it, each at its own "
    "pace. revenue writes exactly once, warehouse is slow, emails fails on some orders, shipping routes parcels "
    "to couriers by filter and priority. Now and then a slow checkout takes its position early and commits late: "
    "subscriptions wait before it and skip nothing."
)
SUBSCRIPTION_NOTES = {
    "revenue": "exactly once",
    "invoices": "a filter",
    "warehouse": "slow",
    "emails": "fails on some",
    "shipping": "routed consumers",
}
"""A note on each subscription."""
MAX_SHOWN_EVENTS = 5
"""At the most; fewer where a terminal has no room for more."""
ROOMY_COLUMNS = 98
"""Columns from which on the whole table of subscriptions fits."""
FRAME_LINES = 2
"""Lines of the panel, and columns of it at each side."""
_WIDE_ONLY = ("age", "in flight")
"""Columns that a narrow terminal goes without."""


@dataclass
class Scene:
    """The state of the demo, drawn as a screen."""

    shop: Shop
    couriers: list[Courier]
    naive_reader: NaiveReader
    address: str | None
    """Of the console, if there is one."""
    subscriptions: list[SubscriptionInfo] = field(default_factory=list)
    """As they were polled last."""

    @property
    def horizon(self) -> int:
        """The position up to which the log is final."""
        return self.shop.mp.log.known_horizon.position

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts: list[RenderableType] = [
            self._invitation(),
            self._state(),
            self._subscriptions(is_roomy=options.max_width >= ROOMY_COLUMNS),
            self._couriers(),
        ]
        inside = options.update_width(options.max_width - 2 * FRAME_LINES)
        # What explains gives way first, in a small terminal, and then what happened last.
        left = console.height - FRAME_LINES - sum(_height(console, inside, part) + 1 for part in parts)
        introduction = Text(INTRODUCTION, style="dim")
        if left - _height(console, inside, introduction) > 1:
            parts.insert(1, introduction)
            left -= _height(console, inside, introduction) + 1
        if left > 0:
            parts.append(self._events(min(left, MAX_SHOWN_EVENTS)))
        yield Panel(
            Group(*_with_blank_lines(parts)),
            title=f"milepost demo, {self.shop.seconds:.0f} s",
            subtitle="Ctrl-C ends it; the next start goes on from here",
            height=console.height,
        )

    def _invitation(self) -> Text:
        if self.address is None:
            return Text("the console needs the extra server: pip install 'milepost[server]'", style="yellow")
        return Text("open ").append(f"{self.address}", style="bold underline")

    def _state(self) -> RenderableType:
        shop = self.shop
        rows = Table.grid(padding=(0, 2))
        rows.add_row("appended", f"{shop.appended:,} messages, {shop.rate:.0f} a second")
        rows.add_row("horizon", Text(f"{self.horizon:,}", style="bold").append(self._waiting()))
        skipped = self.naive_reader.skipped(shop.late_positions)
        rows.add_row(
            "home-made",
            Text('a reader "where position > last" has skipped ').append(
                f"{skipped:,}", style="bold red" if skipped else "green"
            ),
        )
        return rows

    def _waiting(self) -> Text:
        late = self.shop.late
        if late is None:
            return Text("  nothing is held back", style="not bold green")
        seconds = monotonic() - late.since
        return Text(
            f"  {late.position:,} is uncommitted for {seconds:.1f} s; "
            f"{max(0, self.shop.newest - late.position)} wait behind it",
            style="yellow",
        )

    def _subscriptions(self, *, is_roomy: bool) -> RenderableType:
        rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("subscription", "", "status"):
            rows.add_column(name)
        for name in ("lag", "age", "rate", "in flight", "retrying", "parked"):
            if is_roomy or name not in _WIDE_ONLY:
                rows.add_column(name, justify="right", min_width=6)
        for info in self.subscriptions:
            rows.add_row(
                visible(info.name),
                Text(SUBSCRIPTION_NOTES.get(info.name, ""), style="dim"),
                Text(info.status, style=STATUS_STYLES[info.status]),
                f"{info.lag.positions:,}",
                *([format_age(info.lag.seconds)] if is_roomy else []),
                f"{info.rate:.0f}/s",
                *([f"{info.in_flight:,}"] if is_roomy else []),
                f"{info.retrying:,}",
                Text(f"{info.parked:,}", style="yellow" if info.parked else ""),
            )
        return rows

    def _couriers(self) -> RenderableType:
        rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        rows.add_column("courier")
        rows.add_column("takes")
        rows.add_column("priority", justify="right")
        rows.add_column("delivered", justify="right")
        for courier in self.couriers:
            rows.add_row(
                courier.name, courier.where or "everything", str(courier.priority), f"{courier.delivered:,}"
            )
        return rows

    def _events(self, most: int) -> RenderableType:
        latest = list(self.shop.events)[-most:]
        lines = "\n".join(f"{when:4.0f} s  {visible(text)}" for when, text in latest)
        return Text(lines, style="yellow", no_wrap=True, overflow="ellipsis")

    def line(self) -> str:
        """Return the state in one line."""
        lags = ", ".join(f"{info.name} {info.lag.positions:,}" for info in self.subscriptions)
        late = self.shop.late
        held = f"; all wait for position {late.position:,}" if late else ""
        return f"{self.shop.appended:,} appended, horizon {self.horizon:,}{held}; lag: {lags or 'not known yet'}"


def _height(console: Console, options: ConsoleOptions, part: RenderableType) -> int:
    return len(console.render_lines(part, options))


def _with_blank_lines(parts: Sequence[RenderableType]) -> Iterator[RenderableType]:
    """Yield the parts with a blank line between each two."""
    for number, part in enumerate(parts):
        if number:
            yield Text()
        yield part
