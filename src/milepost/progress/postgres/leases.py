"""Who lives, by PostgreSQL: leases of workers in rows or as advisory locks, and the servers on one database."""

import asyncio
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final

import psycopg

from milepost.errors import Unavailable
from milepost.names import is_loopback_url
from milepost.postgres.connections import ResultRow
from milepost.postgres.pool import Connection, Database, fetch_rows, translate_errors
from milepost.postgres.statements import Statements
from milepost.progress.leases import share_lanes, target_lane_count
from milepost.progress.postgres.progress import PROGRAM
from milepost.progress.protocol import LaneShare, LeaseHome
from milepost.progress.reports import ConsumerOwner, Node

LEASE_POOL_CONNECTIONS = 2
"""So that a beat does not wait for whatever else is asked."""


class PostgresLeases:
    """Leases in the schema that progress is kept in. This is the default."""

    async def admit(self, worker: str, group: str, lease: float, home: LeaseHome) -> "PostgresMembership":
        """This worker lives from now on, for `lease` seconds after each beat."""
        membership = PostgresMembership(worker, group, lease, home)
        await membership.open()
        return membership


class PostgresMembership:
    """One worker, on connections of its own."""

    def __init__(self, worker: str, group: str, lease: float, home: LeaseHome) -> None:
        self._database = Database(home.url, pool_size=LEASE_POOL_CONNECTIONS, lease=lease)
        self._statements = Statements(home.schema, "milepost.progress.postgres")
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
        self._database.limit_statement_time(lease)
        try:
            await self.beat()
        except BaseException:
            self._worker["lease"] = before
            raise

    async def balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
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
        return {subscription: LaneShare(tuple(take), tuple(give)) for subscription, (take, give) in lanes.items()}

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


_WANTS_LANE_NUMBER = -1
"""Stands for a lane in the lock that says that a worker wants a subscription."""


class AdvisoryLeases:
    """Leases as locks of a session in the database that progress is kept in.

    The server ends the session of a worker that has not beaten for its lease, and with it its locks. The session
    must not go through a pooler in transaction mode.
    """

    async def admit(self, worker: str, group: str, lease: float, home: LeaseHome) -> "AdvisoryMembership":
        """This worker lives from now on, for `lease` seconds after each beat."""
        membership = AdvisoryMembership(group, lease, home)
        await membership.open()
        return membership


class AdvisoryMembership:
    """One worker, on a connection of its own."""

    def __init__(self, group: str, lease: float, home: LeaseHome) -> None:
        self._database = Database(home.url, pool_size=1, lease=lease)
        self._statements = Statements(home.schema, "milepost.progress.postgres")
        self._connection: Connection | None = None
        self._lease = lease
        self._group = group
        self._owned: dict[int, set[int]] = {}
        self._wants: frozenset[int] = frozenset()
        # What one call found out about the session holds until it ends.
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Begins to live."""
        await self._connect()

    async def beat(self) -> bool:
        """It still lives; False if the session has ended, and all locks with it. It has a new one then."""
        async with self._one_at_a_time:
            if self._connection is not None:
                try:
                    await self._execute("now")
                except Unavailable:
                    pass
                else:
                    return True
            await self._connect()
            return False

    async def change_lease(self, lease: float) -> None:
        """Live for so many seconds after each beat, from this one on."""
        self._database.limit_statement_time(lease)
        async with self._one_at_a_time:
            self._lease = lease
            if self._connection is not None:
                await self._set_lease(self._connection)

    async def balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        """What to take and what to give; of subscriptions that are held and not wanted, all."""
        async with self._one_at_a_time:
            return await self._balance(wanted, held)

    async def _balance(
        self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        await self._want(frozenset(wanted))
        pids, mine, taken = await self._look(wanted)
        shares = {}
        for of in {*wanted, *held}:
            owned, lanes = self._owned.setdefault(of, set()), wanted.get(of, 0)
            before = sorted(pids[of]).index(mine) if lanes else 0
            goal = target_lane_count(of, lanes, len(pids[of]), before) if lanes else 0
            free = [lane for lane in range(lanes) if (of, lane) not in taken]
            shares[of] = share_lanes(goal, owned, held.get(of, ()), free)
        return await self._lock(shares, held)

    async def _want(self, wants: frozenset[int]) -> None:
        more, less = wants - self._wants, self._wants - wants
        if more:
            await self._execute("advisory_lock_shared", [self._key(of, _WANTS_LANE_NUMBER) for of in more])
        if less:
            await self._execute("advisory_unlock_shared", [self._key(of, _WANTS_LANE_NUMBER) for of in less])
        self._wants = wants

    async def _look(self, wanted: Mapping[int, int]) -> tuple[dict[int, set[int]], int, set[tuple[int, int]]]:
        """Which processes want each subscription, which one is this, and which lanes are locked."""
        keys = {
            self._key(of, lane): (of, lane)
            for of, lanes in wanted.items()
            for lane in (_WANTS_LANE_NUMBER, *range(lanes))
        }
        pids: dict[int, set[int]] = {of: set() for of in wanted}
        mine = 0
        taken = set()
        for key, pid, is_mine in await self._execute("advisory_holders", list(keys)):
            of, lane = keys[key]
            if lane == _WANTS_LANE_NUMBER:
                pids[of].add(pid)
                mine = pid if is_mine else mine
            else:
                taken.add((of, lane))
        return pids, mine, taken

    async def _lock(
        self, shares: dict[int, LaneShare], held: Mapping[int, Collection[int]]
    ) -> dict[int, LaneShare]:
        """Locks what is to be taken, as far as nobody else was quicker, and gives up what is not wanted."""
        lanes = [(of, lane) for of, found in shares.items() for lane in found.take if lane not in self._owned[of]]
        keys = {self._key(of, lane): (of, lane) for of, lane in lanes}
        for key, locked in await self._execute("advisory_lock", list(keys)) if keys else ():
            if locked:
                of, lane = keys[key]
                self._owned[of].add(lane)
        for of, found in shares.items():
            await self._unlock(of, self._owned[of] - {*found.take, *held.get(of, ())})
        return {
            of: LaneShare(tuple(lane for lane in found.take if lane in self._owned[of]), found.give)
            for of, found in shares.items()
        }

    async def release(self, subscription: int, lanes: Collection[int]) -> None:
        """Others may have these."""
        async with self._one_at_a_time:
            await self._unlock(subscription, lanes)

    async def _unlock(self, subscription: int, lanes: Collection[int]) -> None:
        owned = self._owned.get(subscription, set())
        if own := owned.intersection(lanes):
            await self._execute("advisory_unlock", [self._key(subscription, lane) for lane in own])
            owned -= own

    async def close(self) -> None:
        """This worker no longer lives; others may have all its lanes."""
        async with self._one_at_a_time:
            if self._connection is not None:
                with suppress(Unavailable):
                    # At once: a session that is closed ends a little later.
                    await self._execute("advisory_unlock_all")
            await self._lose()

    async def _connect(self) -> None:
        await self._lose()
        connection = await self._database.connect()
        await self._set_lease(connection)
        self._connection = connection

    async def _set_lease(self, connection: Connection) -> None:
        """A stopped worker is idle, one whose machine is gone does not answer: the server ends both."""
        milliseconds = str(max(1, round(self._lease * 1000)))
        with translate_errors():
            for setting in ("idle_session_timeout", "tcp_user_timeout"):
                await connection.execute("select set_config(%s, %s, false)", [setting, milliseconds])

    async def _lose(self) -> None:
        self._owned, self._wants = {}, frozenset()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _execute(self, name: str, keys: Iterable[int] = ()) -> Sequence[ResultRow]:
        if self._connection is None:
            raise Unavailable("the session that held the leases has ended")
        try:
            return await fetch_rows(
                self._connection,
                self._statements.get(name),
                {"keys": list(keys)},
                self._database.statement_seconds,
            )
        except (Unavailable, psycopg.Error):
            await self._lose()
            raise

    def _key(self, subscription: int, lane: int) -> int:
        """What is locked: 64 bits of a hash, for advisory locks have no names."""
        name = f"{self._statements.schema} {self._group} {subscription} {lane}"
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


NODE_VALID_TIME: Final = timedelta(seconds=10)
"""How long a server that has not told anything is taken for alive."""

MACHINE_NAME: Final = socket.gethostname()


class PostgresNodes:
    """Tells and finds them.

    An address that only its own machine reaches is told with the machine's name, and found by servers and programs
    of that machine alone.
    """

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress.postgres")

    async def beat(self, id: str, address: str) -> None:
        """A server lives."""
        machine = MACHINE_NAME if is_loopback_url(address) else None
        await self._execute(
            "beat_node", id=id, address=address, machine=machine, version=PROGRAM, during=NODE_VALID_TIME
        )

    async def leave(self, id: str) -> None:
        """It takes no more clients."""
        await self._execute("leave_node", id=id)

    async def all(self) -> list[Node]:
        """Return those that live and can be reached from this machine, the first that came first."""
        return [Node(*row) for row in await self._execute("nodes", machine=MACHINE_NAME)]

    async def owner(self, group: str, name: str) -> ConsumerOwner | None:
        """Who serves the consumers of a subscription; None: nobody has told so in the last seconds."""
        rows = await self._execute("owner_node", group=group, name=name, machine=MACHINE_NAME)
        return ConsumerOwner(*rows[0]) if rows else None

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
