"""Workers that share lanes, for each kind of leases."""

from collections.abc import Mapping

from milepost.progress.leases import MemoryLeases
from milepost.progress.postgres.leases import AdvisoryLeases, AdvisoryMembership, PostgresLeases
from milepost.progress.protocol import LeaseHome, LeaseMembership, Leases
from progress.keepers import PostgresKeeper

LEASE = 40.0


class Worker:
    """Takes and gives what its leases say, at once."""

    def __init__(self, membership: LeaseMembership) -> None:
        self.leases = membership
        self.held: dict[int, set[int]] = {}

    async def balance(self, wanted: Mapping[int, int]) -> bool:
        """One round; whether anything changed."""
        shares = await self.leases.balance(wanted, self.held)
        for subscription, share in shares.items():
            lanes = self.held.setdefault(subscription, set())
            assert not lanes.intersection(share.take)
            assert lanes.issuperset(share.give)
            lanes.update(share.take)
            lanes.difference_update(share.give)
            if share.give:
                await self.leases.release(subscription, share.give)
        return any(share.take or share.give for share in shares.values())


class Crew:
    """All workers on one table of lanes."""

    leases: Leases

    def __init__(self, keeper: PostgresKeeper) -> None:
        self.keeper = keeper
        self.home = LeaseHome(keeper.url, keeper.schema)
        self.workers: list[Worker] = []

    async def hire(self, group: str = "g") -> Worker:
        """A new worker."""
        worker = Worker(await self.leases.admit(f"w{len(self.workers)}", group, LEASE, self.home))
        self.workers.append(worker)
        return worker

    async def expire(self, worker: Worker) -> None:
        """A worker is stopped for longer than its lease; the others go on."""
        self.workers.remove(worker)
        for _ in range(2):
            await self.advance(0.6 * LEASE)
            for other in self.workers:
                assert await other.leases.beat()

    async def advance(self, seconds: float) -> None:
        raise NotImplementedError

    async def settle(self, wanted: Mapping[int, int]) -> None:
        """Rounds until nothing changes in two: in the first, all learn who there is.

        Nobody ever has what another has.
        """
        quiet = 0
        for _ in range(10):
            changes = []
            for worker in self.workers:
                changes.append(await worker.balance(wanted))
                self.check_apart()
            quiet = 0 if any(changes) else quiet + 1
            if quiet == 2:
                return
        raise AssertionError("it does not come to rest")

    def check_apart(self) -> None:
        """No lane is held twice."""
        held = [(of, lane) for worker in self.workers for of, lanes in worker.held.items() for lane in lanes]
        assert len(held) == len(set(held)), held

    def sizes(self, subscription: int) -> list[int]:
        """How many lanes each has."""
        return sorted(len(worker.held.get(subscription, ())) for worker in self.workers)

    async def close(self) -> None:
        for worker in self.workers:
            await worker.leases.close()


class MemoryCrew(Crew):
    """Workers of one process."""

    def __init__(self, keeper: PostgresKeeper) -> None:
        super().__init__(keeper)
        self._now = 0.0
        self.leases = MemoryLeases(lambda: self._now)

    async def advance(self, seconds: float) -> None:
        self._now += seconds


class PostgresCrew(Crew):
    """Workers with rows."""

    leases = PostgresLeases()

    async def advance(self, seconds: float) -> None:
        await self.keeper.advance(seconds)


class AdvisoryCrew(Crew):
    """Workers with advisory locks."""

    leases = AdvisoryLeases()

    async def expire(self, worker: Worker) -> None:
        """The server ends the session, as it does after the lease."""
        self.workers.remove(worker)
        assert isinstance(worker.leases, AdvisoryMembership)
        assert worker.leases._connection is not None
        pid = worker.leases._connection.info.backend_pid
        assert await self.keeper.run("select pg_terminate_backend(%(pid)s::integer, 5000)", pid=pid) == [(True,)]
