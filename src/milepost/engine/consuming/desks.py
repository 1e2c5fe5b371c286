"""All subscriptions with consumers in this process."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from milepost.dispatch import Route
from milepost.engine.consuming.attended import Attended
from milepost.engine.consuming.consumer import OPTIONS, Consumer
from milepost.engine.consuming.created import find
from milepost.engine.consuming.desk import Desk
from milepost.engine.place import Place
from milepost.errors import MilepostError


class Desks:
    """Finds the desk of a subscription, or opens it; ends it when its last consumer has gone."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place
        self._attended: dict[tuple[str, str], Attended] = {}
        self._opening = asyncio.Lock()

    def consumer(self, group: str, name: str, routes: Sequence[Route]) -> Consumer:
        """A consumer that comes when its block begins, and goes when that ends."""

        async def attend(consumer: Consumer) -> Desk:
            return await self._attend(group, name, consumer)

        async def left(consumer: Consumer) -> None:
            await self._left(group, name)

        return Consumer(attend, left, routes)

    async def _attend(self, group: str, name: str, consumer: Consumer) -> Desk:
        async with self._opening:
            attended = self._attended.get((group, name))
            if attended is not None and not attended.is_over:
                attended.runner.join(consumer)
                return attended.runner
            attended = await self._find(group, name)
            attended.runner.join(consumer)
            await attended.start()
            self._attended[group, name] = attended
        if attended.runner.standby:
            attended.journal.info("another process serves its consumers: this one stands by")
        return attended.runner

    async def _find(self, group: str, name: str) -> Attended:
        place = self._place()
        opened = await find(place, group, name)
        if opened.in_code:
            raise MilepostError(
                f"{group}/{name} has handlers in a program, and takes no consumers: create another subscription"
            )
        if opened.settings["tracking"] == "all":
            raise MilepostError(f'{group}/{name} is for pulling: take from it with mp.pull("{name}")')
        return Attended(group, name, opened, place)

    async def _left(self, group: str, name: str) -> None:
        """The last one ends it, so that another process can have the lane."""
        async with self._opening:
            attended = self._attended.get((group, name))
            if attended is not None and not attended.runner.consumers:
                del self._attended[group, name]
                await attended.stop()

    async def close(self) -> None:
        """All consumers end."""
        attended, self._attended = list(self._attended.values()), {}
        for each in attended:
            each.runner.end("closed")
        await asyncio.gather(*(each.stop() for each in attended))


def routes_of(routes: Sequence[Route] | None, options: dict[str, Any]) -> list[Route]:
    """The routes of a consumer: those that are given, or one with these options."""
    if routes is None:
        return [Route(**{name: value for name, value in options.items() if value is not None})]
    given = [name for name in OPTIONS if options.get(name) is not None]
    if given:
        raise ValueError(f"routes say it all: give {', '.join(given)} to each of them")
    if not routes:
        raise ValueError("a consumer has at least one route; without any option it takes everything")
    return list(routes)
