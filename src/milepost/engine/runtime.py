"""What the parts of an open Milepost share in a process: the log, progress, leases, suspect isolation."""

from dataclasses import dataclass
from typing import Protocol

from milepost.engine.declare.declaration import unknown_subscription
from milepost.engine.declare.subscription import ProgramSubscriptions
from milepost.engine.services import Services
from milepost.errors import MilepostError
from milepost.log.protocol import Log
from milepost.progress.postgres.operate import PostgresConsumerSubscriptions
from milepost.progress.protocol import SubscriptionRecord


class SuspectHolder(Protocol):
    """Hands out messages, to handlers or to consumers, some of which may have ended a process."""

    @property
    def in_flight(self) -> int:
        """How many messages are out."""
        ...

    def wake(self) -> None:
        """Something may have become possible."""
        ...


class SuspectIsolation:
    """Lets one at a time hand out what is suspect, when nothing of the others is out."""

    def __init__(self) -> None:
        self._all: dict[SuspectHolder, None] = {}
        self._wanting: dict[SuspectHolder, None] = {}

    def join(self, one: SuspectHolder) -> None:
        """It hands out messages from now on."""
        self._all[one] = None

    def leave(self, one: SuspectHolder) -> None:
        """It hands out nothing any more."""
        self._all.pop(one, None)
        self.wants(one, False)

    def wants(self, one: SuspectHolder, wants: bool) -> None:
        """Whether it has something that is suspect."""
        if wants is (one in self._wanting):
            return
        if wants:
            self._wanting[one] = None
        else:
            del self._wanting[one]
        self._wake()

    def permits(self, one: SuspectHolder) -> bool:
        """Whether it may hand out something now."""
        if not self._wanting:
            return True
        is_next = one is next(iter(self._wanting))
        return is_next and not any(other.in_flight for other in self._all if other is not one)

    def settled(self) -> None:
        """Something that was out is no longer."""
        if self._wanting:
            self._wake()

    def _wake(self) -> None:
        for one in self._all:
            one.wake()


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """An open log, who keeps progress, and the program."""

    log: Log
    services: Services
    subscriptions: ProgramSubscriptions
    """What this program declares, which may be nothing."""
    suspect_isolation: SuspectIsolation
    """Who may hand out messages now: handlers and consumers of this process share it."""
    group: str
    """The program's own."""
    node: str | None = None
    """The address at which this process serves consumers elsewhere; None: it does not."""


def subscription_store(runtime: Runtime) -> PostgresConsumerSubscriptions:
    """Return where subscriptions for consumers are stored; raise if progress is outside of PostgreSQL."""
    if runtime.services.database is None:
        raise MilepostError("progress is kept outside of PostgreSQL: consumers need it in a database")
    return runtime.services.consumer_subscriptions()


async def find_subscription(runtime: Runtime, group: str, name: str) -> SubscriptionRecord:
    """Return a subscription as it is stored; raise `UnknownSubscription` if there is none."""
    record = await subscription_store(runtime).find(group, name)
    if record is None:
        known = [(standing.group, standing.name) for standing in await runtime.services.progress.standings()]
        raise unknown_subscription(group, name, known, otherwise=": create it with mp.create_subscription")
    return record
