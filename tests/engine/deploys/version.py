"""A version of a program: what a test says that it declares, and a process is started with."""

from typing import Any

import msgspec


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, as one version of a program declares it."""

    label: str
    """Which version this is, in what its handlers write down."""
    name: str = "orders"
    renamed_from: str | None = None
    where: str | None = None
    types: tuple[str, ...] | None = None
    """The types that have a handler of their own; None: one handler takes everything."""
    orders: str = "stream"
    """`stream`, `none`, `property`, or `function` and its version."""
    lanes: int = 4
    lease: float = 3
    takes: float = 0.002
    """Seconds that a handler takes."""
    fails: bool = True
    """Whether handlers do what messages ask for: take long, fail, or park."""
    grace: float = 10
    """Seconds that handlers have when the program is asked to end."""
    exactly_once: bool = False
    delay: float = 0.2
    """Seconds until the next attempt."""
    window: int = 1000
    leases: str = "rows"
    """Or `advisory`."""
    progress: str | None = None
    """The database of progress, if that is not the log's."""
    migrations: int = 0
    """How many steps of the schema the program's Milepost knows beyond this one's."""
    breaking: bool = False
    """Whether the last of them asks for a program that knows it."""
    asks_often: bool = False
    """Whether a program that waits for newer ones to end asks often, and notes each time in a file."""
    other: bool = False
    """Whether the program has another subscription beside, `others`."""
    beside: str | None = None
    """The name of one more subscription of the same messages; what it handles has that name in its label."""

    def but(self, label: str, **changes: Any) -> "Version":
        """Another version, which differs in this."""
        return msgspec.structs.replace(self, label=label, **changes)
