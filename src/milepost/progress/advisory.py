"""Leases as advisory locks of one session: no table is written, and a lost connection loses all."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

import psycopg

from milepost.errors import Unavailable
from milepost.log.connections import Row
from milepost.log.database import Connection, Database, driver, fetch
from milepost.log.statements import Statements
from milepost.progress.protocol import Home, Share
from milepost.progress.shares import share, target

_WANTS = -1
"""Stands for a lane in the lock that says that a worker wants a subscription."""


class AdvisoryLeases:
    """Leases as locks of a session in the database that progress is kept in.

    The server ends the session of a worker that has not beaten for its lease, and with it its locks. The session
    must not go through a pooler in transaction mode.
    """

    async def admit(self, worker: str, group: str, lease: float, home: Home) -> "AdvisoryMembership":
        """This worker lives from now on, for `lease` seconds after each beat."""
        membership = AdvisoryMembership(group, lease, home)
        await membership.open()
        return membership


class AdvisoryMembership:
    """One worker, on a connection of its own."""

    def __init__(self, group: str, lease: float, home: Home) -> None:
        self._database = Database(home.url, pool_size=1, lease=lease)
        self._statements = Statements(home.schema, "milepost.progress")
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
        self._database.answers_within(lease)
        async with self._one_at_a_time:
            self._lease = lease
            if self._connection is not None:
                await self._set_lease(self._connection)

    async def balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        """What to take and what to give; of subscriptions that are held and not wanted, all."""
        async with self._one_at_a_time:
            return await self._balance(wanted, held)

    async def _balance(self, wanted: Mapping[int, int], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
        await self._want(frozenset(wanted))
        pids, mine, taken = await self._look(wanted)
        shares = {}
        for of in {*wanted, *held}:
            owned, lanes = self._owned.setdefault(of, set()), wanted.get(of, 0)
            before = sorted(pids[of]).index(mine) if lanes else 0
            goal = target(of, lanes, len(pids[of]), before) if lanes else 0
            free = [lane for lane in range(lanes) if (of, lane) not in taken]
            shares[of] = share(goal, owned, held.get(of, ()), free)
        return await self._lock(shares, held)

    async def _want(self, wants: frozenset[int]) -> None:
        more, less = wants - self._wants, self._wants - wants
        if more:
            await self._execute("advisory_lock_shared", [self._key(of, _WANTS) for of in more])
        if less:
            await self._execute("advisory_unlock_shared", [self._key(of, _WANTS) for of in less])
        self._wants = wants

    async def _look(self, wanted: Mapping[int, int]) -> tuple[dict[int, set[int]], int, set[tuple[int, int]]]:
        """Which processes want each subscription, which one is this, and which lanes are locked."""
        keys = {
            self._key(of, lane): (of, lane) for of, lanes in wanted.items() for lane in (_WANTS, *range(lanes))
        }
        pids: dict[int, set[int]] = {of: set() for of in wanted}
        mine = 0
        taken = set()
        for key, pid, is_mine in await self._execute("advisory_holders", list(keys)):
            of, lane = keys[key]
            if lane == _WANTS:
                pids[of].add(pid)
                mine = pid if is_mine else mine
            else:
                taken.add((of, lane))
        return pids, mine, taken

    async def _lock(self, shares: dict[int, Share], held: Mapping[int, Collection[int]]) -> dict[int, Share]:
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
            of: Share(tuple(lane for lane in found.take if lane in self._owned[of]), found.give)
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
        with driver():
            for setting in ("idle_session_timeout", "tcp_user_timeout"):
                await connection.execute("select set_config(%s, %s, false)", [setting, milliseconds])

    async def _lose(self) -> None:
        self._owned, self._wants = {}, frozenset()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _execute(self, name: str, keys: Iterable[int] = ()) -> Sequence[Row]:
        if self._connection is None:
            raise Unavailable("the session that held the leases has ended")
        try:
            return await fetch(
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
