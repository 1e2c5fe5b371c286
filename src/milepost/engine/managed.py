"""A subscription to look at and to operate, from any process."""

from collections.abc import Callable

from milepost.engine.info import Overview, SubscriptionInfo
from milepost.engine.place import Place


class ManagedSubscription:
    """What `mp.manage` gives. Nothing is asked before one of its methods is called."""

    def __init__(self, group: str, name: str, place: Callable[[], Place]) -> None:
        self.group = group
        self.name = name
        self._place = place

    async def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return await Overview(self._place()).one(self.group, self.name)

    def __repr__(self) -> str:
        return f"ManagedSubscription({f'{self.group}/{self.name}'!r})"
