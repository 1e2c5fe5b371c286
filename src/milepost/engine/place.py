"""Where a Milepost is open: what its parts are made of."""

from dataclasses import dataclass

from milepost.engine.services import Services
from milepost.engine.solitude import Solitude
from milepost.engine.subscription import Subscriptions
from milepost.log.log import Log
from milepost.log.reader import Reader


@dataclass(frozen=True, kw_only=True)
class Place:
    """An open log, who keeps progress, and the program."""

    log: Log
    reader: Reader
    services: Services
    subscriptions: Subscriptions
    """What this program declares, which may be nothing."""
    solitude: Solitude
    """Who may hand out messages now: handlers and consumers of this process share it."""
    group: str
    """The program's own."""
    node: str | None = None
    """The address at which this process serves consumers elsewhere; None: it does not."""
