"""Leases: who may try which lanes, the same whatever keeps them."""

import asyncio
from itertools import pairwise

import pytest

from milepost.progress.leases import MemoryLeases
from milepost.progress.postgres.leases import AdvisoryMembership
from milepost.progress.protocol import LeaseHome, LeaseMembership
from progress.crews import LEASE, AdvisoryCrew, Crew, PostgresCrew
from progress.keepers import PostgresKeeper


def check_even(crew: Crew, subscription: int, lanes: int) -> None:
    sizes = crew.sizes(subscription)
    assert sum(sizes) == lanes
    assert sizes[-1] - sizes[0] <= 1


@pytest.mark.shard("variants", fast=["MemoryCrew-3", "PostgresCrew-3", "AdvisoryCrew-3"])
@pytest.mark.parametrize("lanes", [1, 2, 3, 16])
async def test_lanes_are_shared_out_evenly_as_workers_come_and_go(crew: Crew, lanes: int) -> None:
    for _ in range(4):
        await crew.hire()
        await crew.settle({7: lanes})
        check_even(crew, 7, lanes)
    while len(crew.workers) > 1:
        gone = crew.workers.pop(1)
        await gone.leases.close()
        await crew.settle({7: lanes})
        check_even(crew, 7, lanes)


async def test_many_subscriptions_with_one_lane_are_not_all_one_workers(crew: Crew) -> None:
    wanted = dict.fromkeys(range(1, 9), 1)
    for _ in range(4):
        await crew.hire()
    await crew.settle(wanted)
    assert [sum(map(len, worker.held.values())) for worker in crew.workers] == [2, 2, 2, 2]


async def test_only_those_who_want_a_subscription_share_it(crew: Crew) -> None:
    one, other = await crew.hire(), await crew.hire()
    for _ in range(4):
        await one.balance({1: 4, 2: 4})
        await other.balance({1: 4})
    assert (len(one.held[1]), len(one.held[2]), len(other.held[1])) == (2, 4, 2)


async def test_what_is_no_longer_wanted_is_given(crew: Crew) -> None:
    one, other = await crew.hire(), await crew.hire()
    await crew.settle({1: 4})
    shares = await one.leases.balance({}, one.held)
    assert set(shares[1].give) == one.held[1]
    await one.leases.release(1, shares[1].give)
    one.held.clear()
    await other.balance({1: 4})
    assert other.held[1] == {0, 1, 2, 3}


async def test_what_was_leased_and_not_taken_is_offered_again(crew: Crew) -> None:
    worker = await crew.hire()
    first = await worker.leases.balance({1: 2}, {})
    again = await worker.leases.balance({1: 2}, {1: [0]})
    assert (list(first[1].take), list(again[1].take)) == ([0, 1], [1])


async def test_an_expired_owner_is_replaced_and_learns_it(crew: Crew) -> None:
    stopped, other = await crew.hire(), await crew.hire()
    await crew.settle({1: 4})
    lanes = set(stopped.held[1])
    assert lanes
    await crew.expire(stopped)
    await crew.settle({1: 4})
    assert other.held[1] == {0, 1, 2, 3}
    assert not await stopped.leases.beat()
    shares = await stopped.leases.balance({1: 4}, stopped.held)
    assert set(shares[1].give) == lanes
    assert await stopped.leases.beat()
    stopped.held.clear()
    crew.workers.append(stopped)
    await crew.settle({1: 4})
    check_even(crew, 1, 4)


async def test_a_worker_that_nobody_replaced_learns_it_too(crew: Crew) -> None:
    """Somebody could have: what it held is given up, and taken again under a new epoch."""
    stopped = await crew.hire()
    await stopped.balance({1: 4})
    await crew.expire(stopped)
    assert not await stopped.leases.beat()
    shares = await stopped.leases.balance({1: 4}, {})
    assert list(shares[1].take) == [0, 1, 2, 3]
    await stopped.leases.close()


async def test_a_release_frees_only_what_is_ones_own(crew: Crew) -> None:
    one, other = await crew.hire(), await crew.hire()
    await crew.settle({1: 4})
    await one.leases.release(1, other.held[1])
    await crew.settle({1: 4})
    check_even(crew, 1, 4)


async def test_workers_that_balance_at_once(crew: Crew) -> None:
    wanted = {1: 16, 2: 3, 3: 1}
    workers = [await crew.hire() for _ in range(6)]
    for _ in range(8):
        await asyncio.gather(*(worker.balance(wanted) for worker in workers))
        crew.check_apart()
    for subscription, lanes in wanted.items():
        check_even(crew, subscription, lanes)


async def test_another_lease_holds_from_now_on_and_the_lanes_stay(crew: Crew) -> None:
    one, other = await crew.hire(), await crew.hire()
    await crew.settle({1: 4})
    await one.leases.change_lease(10 * LEASE)
    await other.leases.change_lease(LEASE / 4)
    await crew.settle({1: 4})
    check_even(crew, 1, 4)
    if isinstance(crew, AdvisoryCrew):
        assert await idle_session_timeout(one.leases) == "400s"
        return
    await crew.advance(LEASE / 2)
    assert not await other.leases.beat()
    await crew.advance(8 * LEASE)
    assert await one.leases.beat()


async def test_leases_in_memory_need_no_database() -> None:
    membership = await MemoryLeases().admit("w", "g", LEASE, LeaseHome("", ""))
    assert await membership.beat()
    assert list((await membership.balance({1: 2}, {}))[1].take) == [0, 1]


async def test_ownership_is_written_only_when_it_changes(postgres: PostgresKeeper) -> None:
    crew = PostgresCrew(postgres)
    for _ in range(3):
        await crew.hire()
    await crew.settle({1: 16})
    versions = "select array_agg(xmin::text order by lane) from {}.lanes"
    before = await postgres.run(versions)
    await crew.settle({1: 16})
    assert await postgres.run(versions) == before
    await crew.close()


async def test_a_worker_that_beats_just_now_is_not_expired(postgres: PostgresKeeper) -> None:
    """Its row is locked by its own statement: whoever balances neither waits for it nor takes its lanes."""
    crew = PostgresCrew(postgres)
    owner, other = await crew.hire(), await crew.hire()
    await crew.settle({1: 2})
    await postgres.advance(0.6 * LEASE)
    assert await other.leases.beat()
    await postgres.advance(0.6 * LEASE)
    async with await postgres.connect() as connection:
        await connection.execute(postgres.qualified("update {}.workers set beat = {}.clock() where id = 'w0'"))
        async with asyncio.timeout(60):
            assert not await other.balance({1: 2})
    await crew.settle({1: 2})
    assert len(owner.held[1]) == 1
    await crew.close()


async def test_after_a_crash_of_the_server_workers_share_lanes_out_again_at_once(postgres: PostgresKeeper) -> None:
    """It empties the tables of workers and of lanes: who asks for its share is known again, without a beat."""
    crew = PostgresCrew(postgres)
    workers = [await crew.hire() for _ in range(2)]
    await crew.settle({1: 4})
    await postgres.run("truncate {}.workers, {}.lanes")
    shares = [await worker.leases.balance({1: 4}, worker.held) for worker in workers]
    assert [len(share[1].give) for share in shares] == [0, 2]
    assert [await worker.leases.beat() for worker in workers] == [True, True]
    for worker in workers:
        worker.held.clear()
    await crew.settle({1: 4})
    check_even(crew, 1, 4)
    await crew.close()


async def test_the_server_ends_the_session_of_a_worker_that_does_not_beat(postgres: PostgresKeeper) -> None:
    crew = AdvisoryCrew(postgres)
    worker = await crew.hire()
    assert await idle_session_timeout(worker.leases) == "40s"
    await crew.close()


async def idle_session_timeout(membership: LeaseMembership) -> str:
    assert isinstance(membership, AdvisoryMembership)
    assert membership._connection is not None
    cursor = await membership._connection.execute("show idle_session_timeout")
    [found] = await cursor.fetchone() or ("",)
    return str(found)


async def test_one_statement_balances_a_hundred_subscriptions(postgres: PostgresKeeper) -> None:
    await balance_many(postgres, 100)


@pytest.mark.shard("large")
async def test_one_statement_balances_a_thousand_subscriptions(postgres: PostgresKeeper) -> None:
    await balance_many(postgres, 1000)


async def balance_many(postgres: PostgresKeeper, count: int) -> None:
    """Two workers share `count` subscriptions of 16 lanes."""
    crew = PostgresCrew(postgres)
    workers = [await crew.hire() for _ in range(2)]
    wanted = dict.fromkeys(range(1, count + 1), 16)
    await crew.settle(wanted)
    totals = [sum(map(len, worker.held.values())) for worker in workers]
    assert all(one == other for one, other in pairwise(totals))
    await crew.close()
