"""Why a consumer ended: the words of `ConsumerClosed.reason`."""

from typing import Final

LEFT: Final = "left"
"""Its block has ended."""
DRAINED: Final = "drained"
"""It was to take nothing new, and what it had is settled."""
STOPPED: Final = "stopped"
"""One of its deliveries was settled with `stop`."""
TOO_MANY: Final = "too many consumers"
"""It could not come: there are as many as `max_consumers` allows."""
DELETED: Final = "deleted"
"""The subscription was."""
CLOSED: Final = "closed"
"""The `Milepost` was."""
LOST: Final = "lost"
"""This process could not go on with the subscription; its log says why."""
