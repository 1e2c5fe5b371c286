"""A subscription to look at and to operate, from any process."""

from collections.abc import Callable

from milepost.engine.info import Overview, SubscriptionInfo


class ManagedSubscription:
    """What `mp.manage` gives. Nothing is asked before one of its methods is called."""

    def __init__(self, group: str, name: str, overview: Callable[[], Overview]) -> None:
        self.group = group
        self.name = name
        self._overview = overview

    async def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return await self._overview().one(self.group, self.name)

    def __repr__(self) -> str:
        return f"ManagedSubscription({f'{self.group}/{self.name}'!r})"
