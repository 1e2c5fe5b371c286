"""The shop's couriers: consumers that parcels are routed to, by filter and priority."""

import asyncio
import random
from dataclasses import dataclass

from milepost.app import Milepost

SUBSCRIPTION = "shipping"
RIDE = 0.15
"""Seconds for a delivery, on average."""


@dataclass
class Courier:
    """Takes parcels that match its filter, a few at a time; the highest priority is asked first."""

    name: str
    where: str | None
    priority: int
    capacity: int
    delivered: int = 0

    async def run(self, mp: Milepost) -> None:
        """Delivers for ever."""
        async with mp.consumer(
            SUBSCRIPTION, where=self.where, priority=self.priority, capacity=self.capacity
        ) as consumer:
            async for delivery in consumer:
                async with delivery:
                    await asyncio.sleep(random.uniform(0.2, 1.8) * RIDE)  # noqa: S311
                    self.delivered += 1


def couriers() -> list[Courier]:
    """Those of the shop."""
    return [
        Courier("express", "express == true", priority=10, capacity=2),
        Courier("overseas", 'region == "US" || region == "JP"', priority=5, capacity=4),
        Courier("anywhere", None, priority=0, capacity=4),
    ]


async def create(mp: Milepost) -> None:
    """The subscription that they share."""
    await mp.create_subscription(SUBSCRIPTION, category="parcel", ordered_by=None, on_park="continue", timeout=30)
