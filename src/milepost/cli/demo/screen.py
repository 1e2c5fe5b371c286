"""What a person sees: a screen that explains itself, or lines where there is no terminal."""

from dataclasses import dataclass
from statistics import median
from time import monotonic

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from milepost.cli.demo.followers import Follower, HomeMade, Reader
from milepost.cli.demo.shop import Shop
from milepost.cli.output import visible

INTRODUCTION = (
    "A shop appends to a log on PostgreSQL; followers read it live. Now and then a slow checkout takes its "
    "position early and commits late. Followers stop before it, at the horizon, and skip nothing. A home-made "
    'reader, "where position > last", goes past it and never sees it.'
)
LINES_BESIDE_MESSAGES = 20
EVENTS = 3


@dataclass(frozen=True)
class Scene:
    """Everything there is to show."""

    shop: Shop
    followers: list[Follower]
    home_made: HomeMade

    @property
    def horizon(self) -> int:
        """As far as anybody may read."""
        return self.shop.mp.log.horizon.position

    @property
    def readers(self) -> list[Reader]:
        """All who read along."""
        return [*self.followers, self.home_made]

    @property
    def held_back(self) -> int:
        """How many messages wait for the late one."""
        return max(0, self.shop.appended - len(self.followers[0].positions))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Panel(
            Group(
                Text(INTRODUCTION, style="dim"),
                Text(),
                self._state(),
                Text(),
                self._readers(),
                Text(),
                self._messages(max(3, console.height - LINES_BESIDE_MESSAGES)),
                Text(),
                self._events(),
            ),
            title=f"milepost demo, {self.shop.seconds:.0f} s",
            subtitle="Ctrl-C ends it",
            height=console.height,
        )

    def _state(self) -> RenderableType:
        shop = self.shop
        rows = Table.grid(padding=(0, 2))
        rows.add_row(
            "appended", f"{shop.appended:,} messages, {shop.rate:.0f} a second; newest at {shop.newest:,}"
        )
        rows.add_row("horizon", Text(f"{self.horizon:,}", style="bold").append(self._waiting()))
        return rows

    def _waiting(self) -> Text:
        late = self.shop.late
        if late is None:
            return Text("  nothing is held back", style="not bold green")
        seconds = monotonic() - late.since
        return Text(
            f"  {late.position:,} is uncommitted for {seconds:.1f} s; {self.held_back} wait behind it",
            style="yellow",
        )

    def _readers(self) -> RenderableType:
        rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("reader", "follows"):
            rows.add_column(name)
        for name in ("seen", "up to", "delay", "skipped"):
            rows.add_column(name, justify="right", min_width=8)
        for reader in self.readers:
            skipped = len(reader.skipped(self.shop.late_positions))
            rows.add_row(
                reader.name,
                reader.follows,
                f"{len(reader.positions):,}",
                f"{reader.newest:,}",
                _delay(reader),
                Text(f"{skipped:,}", style="bold red" if skipped else "green"),
            )
        return rows

    def _messages(self, count: int) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        for message in list(self.followers[0].recent)[-count:]:
            rows.add_row(
                Text(f"{message.position:>6}", style="bold"),
                Text(message.stream, style="cyan"),
                Text(message.type, style="green"),
                Text(visible(message.raw), no_wrap=True, overflow="ellipsis"),
            )
        return rows

    def _events(self) -> RenderableType:
        lines = "\n".join(f"{when:4.0f} s  {text}" for when, text in self.shop.events[-EVENTS:])
        return Text(lines, style="yellow", no_wrap=True, overflow="ellipsis")

    def line(self) -> str:
        """The state in one line."""
        seen = ", ".join(f"{reader.name} {len(reader.positions):,}" for reader in self.readers)
        late = self.shop.late
        held = f"; {self.held_back} wait for position {late.position:,}" if late else ""
        return f"{self.shop.appended:,} appended, horizon {self.horizon:,}{held}; seen: {seen}"


def _delay(reader: Reader) -> str:
    if not isinstance(reader, Follower) or not reader.waits:
        return ""
    return f"{median(reader.waits) * 1000:.1f} ms"
