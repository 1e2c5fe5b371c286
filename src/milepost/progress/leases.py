"""Leases in rows: a heartbeat a worker, an owner a lane."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.progress.postgresql import PROGRAM
from milepost.progress.protocol import Share


class PostgresLeases:
    """A worker's leases in a schema of a database, which whoever made it opens and closes."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress")
        self._worker: dict[str, Any] = {}

    async def open(self, worker: str, group: str, lease: float) -> None:
        """This worker lives from now on."""
        self._worker = {"worker": worker, "group": group, "program": PROGRAM, "lease": timedelta(seconds=lease)}
        await self.beat()

    async def beat(self) -> bool:
        """It still does. If it did not, it does again from now on, without lanes, and this is False."""
        rows = await self._database.execute(self._statements.get("beat"), self._worker)
        return bool(rows[0][0])

    async def balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        """What to take and what to give; of subscriptions that are held and not wanted, all."""
        pairs = [(subscription, lane) for subscription, lanes in held.items() for lane in sorted(lanes)]
        rows = await self._database.execute(
            self._statements.get("balance"),
            {
                "worker": self._worker["worker"],
                "wants": list(wanted),
                "sizes": list(wanted.values()),
                "held_in": [subscription for subscription, _ in pairs],
                "held_lanes": [lane for _, lane in pairs],
            },
        )
        lanes: dict[int, tuple[list[int], list[int]]] = {
            subscription: ([], []) for subscription in (*wanted, *held)
        }
        for subscription, lane, gives in rows:
            lanes[subscription][gives].append(lane)
        return {subscription: Share(tuple(take), tuple(give)) for subscription, (take, give) in lanes.items()}

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        parameters = {"worker": self._worker["worker"], "subscription": subscription, "lanes": list(lanes)}
        await self._database.execute(self._statements.get("release_lanes"), parameters)

    async def close(self) -> None:
        """This worker no longer lives; others may have all its lanes."""
        await self._database.execute(self._statements.get("leave"), {"worker": self._worker["worker"]})
