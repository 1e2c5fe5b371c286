"""Waiting in a pull: what ends it, and that nobody looks again and again meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from engine.pulling import PATIENCE, Jobs, Waiting, positions
from milepost import Milepost, NewMessage, Retry, UnknownSubscription
from milepost.engine.pull import claims, puller
from milepost.log.postgres import wakeups
from milepost.log.postgres.wakeups import Wakeups
from support import MakeMilepost


@pytest.fixture(autouse=True)
def nothing_is_found_by_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a wait in these tests is what it should be."""
    monkeypatch.setattr(claims, "PULL_POLL_SECONDS", 1000.0)
    monkeypatch.setattr(wakeups, "PROBE_TIMEOUT_SECONDS", PATIENCE)


@pytest.fixture
async def other(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    """Another process."""
    async with make_mp() as mp:
        yield mp


async def test_an_append_ends_it(mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = await Jobs.create(mp)
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await Jobs(other).append(2)
    assert await waiting.got() == [1, 2]


async def test_it_does_not_look_again_and_again(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = await Jobs.create(mp)
    lasts: list[float] = []
    listening = asyncio.Event()
    sleep = puller.PullWait.sleep

    async def noted(wait: puller.PullWait, seconds: float) -> None:
        if wait._services.is_listening:
            lasts.append(seconds)
            listening.set()
        await sleep(wait, seconds)

    monkeypatch.setattr(puller.PullWait, "sleep", noted)
    pulling = asyncio.create_task(jobs.pull(wait=2000))
    async with asyncio.timeout(PATIENCE):
        await listening.wait()
        await jobs.append(1)
        assert positions(await pulling) == [1]
    # Once it is known that listening works, it sleeps until it is woken.
    assert min(lasts) > 900


async def test_it_ends_in_time(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = await Jobs.create(mp)
    lasts: list[float] = []
    sleep = puller.PullWait.sleep

    async def noted(wait: puller.PullWait, seconds: float) -> None:
        lasts.append(seconds)
        await sleep(wait, seconds)

    monkeypatch.setattr(puller.PullWait, "sleep", noted)
    # It does not sleep where all of the time has passed before it would.
    while not lasts:
        assert await jobs.pull(wait=0.2) == ()
    assert max(lasts) <= 0.2


async def test_what_is_not_wanted_does_not_end_it(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp)
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.append("noise-1", NewMessage("t"))
    await Jobs(other).append(1)
    assert await waiting.got() == [2]


async def test_a_key_that_another_process_frees_ends_it(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp, ordered_by="stream")
    await jobs.append(2)
    [first] = await jobs.pull()
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.settle(ack=first.token)
    assert await waiting.got() == [2]


async def test_so_does_one_that_is_given_back(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(1)
    [first] = await jobs.pull()
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.settle(retry=first.token, after=0)
    assert await waiting.got() == [1]


async def test_settling_in_sql_ends_it_too(
    mp: Milepost, database_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp, ordered_by="stream")
    await jobs.append(2)
    [first] = await jobs.pull()
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute(f'select "{schema}".settle(ack => %s)'.encode(), [[first.token]])
    assert await waiting.got() == [2]


async def test_a_person_who_retries_ends_it(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp, retry=Retry.never)
    await jobs.append(1)
    await jobs.settle(retry=await jobs.pull())
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.manage("emails").retry(all=True)
    assert await waiting.got() == [1]


async def test_a_person_who_resumes_ends_it(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(1)
    await jobs.managed.pause()
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.manage("emails").resume()
    assert await waiting.got() == [1]


async def test_a_person_who_deletes_it_ends_it(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp)
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.manage("emails").delete()
    with pytest.raises(UnknownSubscription):
        await waiting.got()


async def test_one_that_is_due_ends_it(mp: Milepost) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(1)
    await jobs.settle(retry=await jobs.pull(), after=0.3)
    async with asyncio.timeout(PATIENCE - 10):
        assert positions(await jobs.pull(wait=PATIENCE)) == [1]


async def test_a_claim_that_expires_ends_it(mp: Milepost) -> None:
    jobs = await Jobs.create(mp, retry=Retry(delay=0))
    await jobs.append(1)
    await jobs.pull(timeout=0.3)
    async with asyncio.timeout(PATIENCE - 10):
        [task] = await jobs.pull(wait=PATIENCE)
    assert task.attempt == 2


async def test_many_wait_at_once(mp: Milepost, other: Milepost) -> None:
    jobs = await Jobs.create(mp)
    waiting = [asyncio.create_task(each.pull(limit=1, wait=PATIENCE)) for each in [jobs, Jobs(other)] * 5]
    for _ in range(10):
        await jobs.append(1)
        await asyncio.sleep(0)
    got = [position for tasks in await asyncio.gather(*waiting) for position in positions(tasks)]
    assert sorted(got) == list(range(1, 11))


async def test_a_pull_that_is_cancelled_leaves_nothing_behind(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp)
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await waiting.cancel()
    await jobs.append(1)
    assert positions(await jobs.pull(wait=PATIENCE)) == [1]


async def test_it_listens_a_little_longer_and_then_no_more(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "LISTEN_LINGER_SECONDS", 0.05)
    jobs = await Jobs.create(mp)
    assert await jobs.pull(wait=0.1) == ()
    assert mp.log.feed._followers == 1
    async with asyncio.timeout(40):
        while mp.log.feed._followers:
            await asyncio.sleep(0.01)
    await jobs.append(1)
    assert positions(await jobs.pull(wait=PATIENCE)) == [1]


async def test_it_can_be_closed_and_opened_again(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    async with mp:
        jobs = await Jobs.create(mp)
        assert await jobs.pull(wait=0.05) == ()
    async with mp:
        await jobs.append(1)
        assert positions(await jobs.pull(wait=PATIENCE)) == [1]


async def test_without_notifications_it_looks_now_and_then(
    mp: Milepost, other: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wakeups, "start", lambda wakeups: None)
    jobs = await Jobs.create(mp, ordered_by="stream")
    await jobs.append(2)
    [first] = await jobs.pull()
    waiting = Waiting(jobs, monkeypatch)
    await waiting.asleep()
    await other.settle(ack=first.token)
    assert await waiting.got() == [2]
