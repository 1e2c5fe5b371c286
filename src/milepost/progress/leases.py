"""Leases in rows: a heartbeat a worker, an owner a lane."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.progress.postgresql import PROGRAM
from milepost.progress.protocol import Home, Share

POOL_SIZE = 2
"""So that a beat does not wait for whatever else is asked."""


class PostgresLeases:
    """Leases in the schema that progress is kept in. This is the default."""

    async def admit(self, worker: str, group: str, lease: float, home: Home) -> "PostgresMembership":
        """This worker lives from now on, for `lease` seconds after each beat."""
        membership = PostgresMembership(worker, group, lease, home)
        await membership.open()
        return membership


class PostgresMembership:
    """One worker, on connections of its own."""

    def __init__(self, worker: str, group: str, lease: float, home: Home) -> None:
        self._database = Database(home.url, pool_size=POOL_SIZE, lease=lease)
        self._statements = Statements(home.schema, "milepost.progress")
        self._worker: dict[str, Any] = {
            "worker": worker,
            "group": group,
            "program": PROGRAM,
            "lease": timedelta(seconds=lease),
        }

    async def open(self) -> None:
        """Begins to live."""
        await self._database.open()
        try:
            await self.beat()
        except BaseException:
            await self._database.close()
            raise

    async def beat(self) -> bool:
        """It still lives. If it did not, it does again from now on, without lanes, and this is False."""
        rows = await self._database.execute(self._statements.get("beat"), self._worker)
        return bool(rows[0][0])

    async def change_lease(self, lease: float) -> None:
        """Live for so many seconds after each beat, from this one on."""
        before = self._worker["lease"]
        self._worker["lease"] = timedelta(seconds=lease)
        self._database.answers_within(lease)
        try:
            await self.beat()
        except BaseException:
            self._worker["lease"] = before
            raise

    async def balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        """What to take and what to give; of subscriptions that are held and not wanted, all.

        A worker that nobody knows, since it had expired or since the server crashed, begins anew.
        """
        pairs = [(subscription, lane) for subscription, lanes in held.items() for lane in sorted(lanes)]
        parameters = {
            "worker": self._worker["worker"],
            "wants": list(wanted),
            "sizes": list(wanted.values()),
            "held_in": [subscription for subscription, _ in pairs],
            "held_lanes": [lane for _, lane in pairs],
        }
        statement = self._statements.get("balance")
        rows = await self._database.execute(statement, parameters)
        if rows and rows[0][0] is None:
            await self.beat()
            rows = await self._database.execute(statement, parameters)
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
        try:
            await self._database.execute(self._statements.get("leave"), {"worker": self._worker["worker"]})
        finally:
            await self._database.close()
