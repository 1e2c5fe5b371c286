"""One loop looks for all who watch, and seldom while nobody does."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from time import monotonic

import pytest

from milepost.console import poller as watching
from milepost.console.charts import (
    HISTORY_SECONDS,
    MAX_POINTS,
    HistoryPoint,
    RecentHistory,
    chart,
    mean_handling_seconds,
)
from milepost.console.live import LivePages
from milepost.console.poller import OverviewPoller, PollPace
from milepost.console.snapshot import LogState, OverviewSnapshot
from milepost.errors import Unavailable
from milepost.server.shutdown import Shutdown


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCHED_PACE", PollPace(0.01, 0, 30))
    monkeypatch.setattr(watching, "IDLE_PACE", PollPace(3600, 0, 3600))
    monkeypatch.setattr(watching, "LINGER_SECONDS", 0.05)


class Looks:
    """Counts them; may fail."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False

    async def __call__(self, number: int) -> OverviewSnapshot:
        self.count += 1
        if self.fails:
            raise Unavailable("PostgreSQL: gone")
        return OverviewSnapshot(
            number, monotonic(), datetime.now(UTC), [], [], [], LogState(self.count, 0, None, ())
        )


async def test_all_who_watch_are_given_the_same_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCHED_PACE", PollPace(3600, 0, 3600))
    looks = Looks()
    watch = OverviewPoller(looks)
    with watch.watching():
        last = (await watch.after(0)).number
        for _ in range(5):
            waiting = [asyncio.create_task(watch.after(last)) for _ in range(10)]
            await watch.refresh()
            [number] = {snapshot.number for snapshot in await asyncio.gather(*waiting)}
            assert number == last + 1
            last = number
    assert looks.count == 6
    await watch.stop()


async def test_nobody_watches_nobody_looks() -> None:
    looks = Looks()
    watch = OverviewPoller(looks)
    with watch.watching():
        await watch.after(0)
    task = watch._task
    assert task is not None
    async with asyncio.timeout(60):
        await task
    seen = looks.count
    with watch.watching():
        assert (await watch.after((await watch.now()).number)).log.horizon > seen
    await watch.stop()


async def test_a_page_is_given_what_was_seen_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCHED_PACE", PollPace(3600, 0, 3600))
    looks = Looks()
    watch = OverviewPoller(looks)
    first, *others = await asyncio.gather(*(watch.now() for _ in range(5)))
    assert looks.count == 1
    assert all(other is first for other in others)
    assert (await watch.refresh()).number == first.number + 1


def test_a_look_that_takes_long_is_made_less_often() -> None:
    pace = PollPace(seconds=2, share=40, slowest=30)
    assert [pace.after(took) for took in (0.001, 0.1, 10)] == [2, 4, 30]


async def test_only_looks_that_take_long_each_time_are_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    class Noted(PollPace):
        def after(self, took: float) -> float:
            rests.append(super().after(took))
            return rests[-1]

    monkeypatch.setattr(watching, "WATCHED_PACE", Noted(0.01, 1_000_000, 3600))
    looks = Looks()

    async def look(number: int) -> OverviewSnapshot:
        await asyncio.sleep(0.02)
        return await looks(number)

    watch = OverviewPoller(look)
    async with asyncio.timeout(60):
        with watch.watching():
            while 3600 not in rests:
                await asyncio.sleep(0.01)
    assert rests == [0.01] * (watching.SLOW_POLLS_BEFORE_BACKOFF - 1) + [3600]
    assert looks.count == watching.SLOW_POLLS_BEFORE_BACKOFF
    await watch.stop()


async def test_a_server_looks_from_its_start_and_often_as_soon_as_somebody_watches() -> None:
    looks = Looks()
    watch = OverviewPoller(looks)
    async with asyncio.timeout(60), watch.running():
        first = await watch.after(0)
        with watch.watching():
            last = first
            for _ in range(3):
                last = await watch.after(last.number)
    assert watch.history._heads[0][0] == first.taken
    task = watch._task
    assert task is not None
    assert task.done()


async def test_a_server_looks_also_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "IDLE_PACE", PollPace(0.01, 0, 30))
    watch = OverviewPoller(Looks())
    async with asyncio.timeout(60), watch.running():
        while len(watch.history.log_rates()) < 3:
            await watch.after(watch._number)


async def test_what_keeps_anybody_from_looking_is_told_and_passes() -> None:
    looks = Looks()
    watch = OverviewPoller(looks)
    with watch.watching():
        newest = await watch.after(0)
        looks.fails = True
        with pytest.raises(Unavailable):
            while True:
                newest = await watch.after(newest.number)
        looks.fails = False
        async with asyncio.timeout(60):
            while True:
                try:
                    await watch.after(newest.number)
                    break
                except Unavailable:
                    await asyncio.sleep(0.01)
    await watch.stop()


async def test_history_is_bounded_and_forgets_who_is_gone() -> None:
    history = RecentHistory()
    looks = Looks()
    for number in range(MAX_POINTS * 2):
        history.add(await looks(number))
    assert len(history.log_rates()) == MAX_POINTS - 1
    assert history.of("shop/gone") == ()


def snapshot(at: float, position: int) -> OverviewSnapshot:
    return OverviewSnapshot(1, at, datetime.now(UTC), [], [], [], LogState(position, position, None, ()))


def test_what_is_older_than_some_minutes_is_forgotten() -> None:
    history = RecentHistory()
    for at, position in ((0, 0), (100, 50), (HISTORY_SECONDS + 50, 100)):
        history.add(snapshot(at, position))
    assert history.log_rates() == [(HISTORY_SECONDS + 50, 50 / (HISTORY_SECONDS - 50))]


def test_the_rate_of_the_log_is_that_of_the_last_seconds() -> None:
    history = RecentHistory()
    assert history.log_rate(0) is None
    history.add(snapshot(0, 0))
    assert history.log_rate(0) is None
    history.add(snapshot(100, 1000))
    assert history.log_rate(100) == 10
    for at in (102, 104, 106):
        history.add(snapshot(at, 1000 + 20 * (at - 100)))
    assert history.log_rate(106) == 20


def point(at: float, attempts: int, seconds: float) -> HistoryPoint:
    return HistoryPoint(at=at, lag=0, age=0, rate=1, attempts=attempts, handling_seconds=seconds)


def test_the_handling_time_is_what_workers_measured() -> None:
    assert mean_handling_seconds([]) == []
    assert mean_handling_seconds([point(0, 10, 5.0)]) == []
    # They tell every few seconds, so that some looks find nothing new.
    points = [point(0, 10, 5.0), point(2, 20, 6.0), point(4, 20, 6.0), point(20, 20, 6.0), point(22, 24, 8.0)]
    assert mean_handling_seconds(points) == [(2, 0.1), (4, 0.1), (20, 0.0), (22, 0.5)]


def test_a_worker_that_is_forgotten_makes_no_handling_time() -> None:
    assert mean_handling_seconds([point(0, 100, 50.0), point(2, 10, 1.0)]) == [(2, 0.0)]


def test_a_chart_is_drawn_by_time() -> None:
    """It is looked at different paces."""
    drawn = chart([(0, 0), (10, 5), (20, 10), (21, 10), (22, 10), (30, 0), (40, 0)], "lag")
    assert "M0 23L30 12L60 1L63 1L66 1L90 23L120 23" in drawn


async def test_ten_open_pages_cost_one_look_and_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCHED_PACE", PollPace(3600, 0, 3600))
    looks, drawn = Looks(), list[int]()
    watch = OverviewPoller(looks)
    live = LivePages(watch, Shutdown())
    arrived = [asyncio.Queue[bytes]() for _ in range(10)]

    async def draw(snapshot: OverviewSnapshot) -> dict[str, str]:
        # Others come while it asks the database.
        await asyncio.sleep(0)
        drawn.append(snapshot.number)
        return {"numbers": str(snapshot.number)}

    async def may_stay() -> bool:
        return True

    async def follow(queue: asyncio.Queue[bytes]) -> None:
        async with aclosing(live.pieces("page", draw, may_stay, since=0)) as pieces:
            async for piece in pieces:
                if b"event: regions" in piece:
                    queue.put_nowait(piece)

    pages = [asyncio.create_task(follow(queue)) for queue in arrived]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(queue.get() for queue in arrived))
            for _ in range(3):
                await watch.refresh()
                assert len({await queue.get() for queue in arrived}) == 1
    finally:
        for page in pages:
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
        await watch.stop()
    assert looks.count == 4
    assert drawn == sorted(set(drawn))


async def test_an_open_page_is_sent_nothing_more_once_its_reader_may_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "WATCHED_PACE", PollPace(3600, 0, 3600))
    watch = OverviewPoller(Looks())
    stays, arrived = True, asyncio.Queue[bytes]()

    async def draw(snapshot: OverviewSnapshot) -> dict[str, str]:
        return {"numbers": str(snapshot.number)}

    async def may_stay() -> bool:
        return stays

    async def follow() -> None:
        async with aclosing(LivePages(watch, Shutdown()).pieces("page", draw, may_stay, since=0)) as pieces:
            async for piece in pieces:
                arrived.put_nowait(piece)

    page = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(60):
            while b"event: regions" not in await arrived.get():
                pass
            stays = False
            await watch.refresh()
            assert b"event: ended" in await arrived.get()
            await page
    finally:
        page.cancel()
        await watch.stop()


async def test_an_open_page_is_told_of_an_outage_and_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCHED_PACE", PollPace(3600, 0, 3600))
    looks = Looks()
    watch = OverviewPoller(looks)

    async def draw(snapshot: OverviewSnapshot) -> dict[str, str]:
        return {"numbers": "the same"}

    async def may_stay() -> bool:
        return True

    pieces = LivePages(watch, Shutdown()).pieces("page", draw, may_stay, since=0)
    async with asyncio.timeout(60), aclosing(pieces):
        assert [(await anext(pieces)).split(b"\n")[0] for _ in range(3)] == [
            b"retry: 2000",
            b"event: live",
            b"event: regions",
        ]
        looks.fails = True
        with pytest.raises(Unavailable):
            await watch.refresh()
        assert b"The database cannot be reached" in await anext(pieces)
        with pytest.raises(Unavailable):
            watch.check()
        looks.fails = False
        await watch.refresh()
        assert (await anext(pieces)).startswith(b"event: live")
        watch.check()
    await watch.stop()


async def test_a_database_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_TIMEOUT_SECONDS", 0.05)

    async def look(number: int) -> OverviewSnapshot:
        await asyncio.Event().wait()
        raise AssertionError

    watch = OverviewPoller(look)
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(watch.now() for _ in range(20)), return_exceptions=True)
    assert all(isinstance(each, Unavailable) for each in found)
    # Those who waited for the first were told with it.
    assert len(set(map(id, found))) == 1
