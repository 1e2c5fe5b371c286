"""Pulling and settling: what is claimed, by whom, for how long, and how it ends."""

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from engine.pulling import Clock, Jobs, positions
from milepost import (
    MemoryProgress,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Retry,
    TooLarge,
    UnknownSubscription,
    by_property,
)
from milepost.engine.pull import claims, puller, scanner
from milepost.log.postgres.reader import Reader
from milepost.log.query import Page
from support import MakeMilepost


@pytest.fixture
async def jobs(mp: Milepost) -> Jobs:
    return await Jobs.create(mp)


@pytest.fixture
def clock(mp: Milepost) -> Clock:
    return Clock(mp)


class TestPulling:
    async def test_what_a_delivery_says(self, jobs: Jobs) -> None:
        await jobs.mp.append("job-1", NewMessage("sent", {"to": "a"}, properties={"n": 1}))
        [task] = await jobs.pull(timeout=60)
        assert (task.message.stream, task.message.type, task.message.data) == ("job-1", "sent", {"to": "a"})
        assert (task.position, task.attempt, task.replay) == (1, 1, False)
        assert len(task.token) > 32
        [row] = await jobs.rows()
        assert (row.state, row.attempts, row.key) == ("running", 0, None)
        assert 59 < (task.expires - row.since).total_seconds() <= 60.1

    async def test_a_limit_and_then_the_rest(self, jobs: Jobs) -> None:
        appended = await jobs.append(5)
        first = await jobs.pull(limit=3)
        second = await jobs.pull(limit=3)
        assert (positions(first), positions(second)) == (appended[:3], appended[3:])
        assert (first.more, second.more) == (True, False)
        assert await jobs.pull() == ()

    async def test_what_was_read_ahead_is_not_given_after_a_move_or_another_filter(self, jobs: Jobs) -> None:
        appended = await jobs.append(40)
        await jobs.settle(ack=await jobs.pull(limit=10))
        await jobs.settle(ack=await jobs.pull(limit=20))
        managed = jobs.mp.manage("emails")
        await managed.move(appended[4])
        assert positions(await jobs.pull(limit=3)) == appended[5:8]
        await managed.update(types="other")
        await jobs.mp.append("job-1", NewMessage("other"))
        assert positions(await jobs.pull(limit=3)) == [appended[-1] + 1]

    async def test_nothing_is_read_any_more_when_it_is_closed(self, make_mp: MakeMilepost, jobs: Jobs) -> None:
        await jobs.append(40)
        async with make_mp() as mp:
            await Jobs(mp).pull(limit=10)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "milepost-scanning"]

    async def test_slices_are_what_can_be_settled(self, jobs: Jobs) -> None:
        await jobs.append(5)
        tasks = await jobs.pull()
        result = await jobs.settle(ack=tasks[:3], retry=tasks[3:])
        assert (result.moved, result.refused) == (tuple(tasks), ())
        assert await jobs.states() == {4: "retrying", 5: "retrying"}

    async def test_only_what_is_selected(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, types=["mail.*"], where="size > 10")
        for category, type_, size in [
            ("job", "mail.sent", 11),
            ("jobs", "mail.sent", 11),
            ("job", "letter.sent", 11),
            ("job", "mail.sent", 10),
            ("job", "mail.read", 99),
        ]:
            await mp.append(f"{category}-1", NewMessage(type_, properties={"size": size}))
        assert positions(await jobs.pull()) == [1, 5]

    async def test_a_pull_scans_a_bounded_part_and_says_that_there_is_more(
        self, mp: Milepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claims, "MAX_PARTS_PER_PULL", 2)
        monkeypatch.setattr("milepost.log.query.FIRST_SPAN_POSITIONS", 3)
        monkeypatch.setattr("milepost.log.query.MAX_SPAN_POSITIONS", 3)
        jobs = await Jobs.create(mp, category=None, types="wanted")
        await jobs.append(12)
        await mp.append("job-1", NewMessage("wanted"))
        seen = [(len(tasks), tasks.more) for tasks in [await jobs.pull() for _ in range(4)]]
        assert seen == [(0, True), (0, True), (1, False), (0, False)]

    async def test_waiting_goes_on_scanning(self, mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "MAX_PARTS_PER_PULL", 1)
        monkeypatch.setattr("milepost.log.query.FIRST_SPAN_POSITIONS", 3)
        monkeypatch.setattr("milepost.log.query.MAX_SPAN_POSITIONS", 3)
        jobs = await Jobs.create(mp, category=None, types="wanted")
        await jobs.append(12)
        await mp.append("job-1", NewMessage("wanted"))
        assert positions(await jobs.pull(wait=20)) == [13]

    async def test_the_messages_of_one_pull_have_a_bounded_size_together(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp)
        large = "x" * 900_000
        for _ in range(12):
            await mp.append("job-1", NewMessage("sent", large))
        first, second, third = [await jobs.pull() for _ in range(3)]
        assert (positions(first), positions(second), positions(third)) == (
            list(range(1, 11)),
            [11, 12],
            [],
        )
        assert first.more
        await jobs.settle(retry=[*first, *second], after=0)
        again = await jobs.pull()
        assert positions(again) == list(range(1, 11))
        assert again.more

    async def test_one_message_at_least(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(puller, "PAGE_BYTES", 1)
        await jobs.append(3)
        first = await jobs.pull()
        assert positions(first) == [1]
        await jobs.settle(retry=first, after=0)
        assert positions(await jobs.pull()) == [1]
        assert positions(await jobs.pull()) == [2]

    async def test_what_commits_late_is_not_passed(
        self, jobs: Jobs, make_mp: MakeMilepost, database_url: str
    ) -> None:
        import psycopg

        async with await psycopg.AsyncConnection.connect(database_url) as slow:
            await jobs.mp.append("job-slow", NewMessage("sent"), connection=slow)
            await jobs.append(3)
            assert await jobs.pull() == ()
            await slow.commit()
        assert positions(await jobs.pull()) == [1, 2, 3, 4]

    async def test_two_subscriptions_are_independent(self, mp: Milepost) -> None:
        one, other = await Jobs.create(mp, "one"), await Jobs.create(mp, "other")
        await one.append(4)
        assert positions(await one.pull()) == [1, 2, 3, 4]
        assert await other.drain() == [1, 2, 3, 4]
        assert set((await one.states()).values()) == {"running"}

    async def test_it_begins_where_it_is_told_to(self, mp: Milepost) -> None:
        await Jobs(mp).append(3)
        jobs = await Jobs.create(mp, start="now")
        await jobs.append(2)
        assert await jobs.drain() == [4, 5]

    async def test_now_leaves_out_what_is_visible_beyond_an_open_append(
        self, mp: Milepost, make_mp: MakeMilepost, database_url: str
    ) -> None:
        import psycopg

        async with await psycopg.AsyncConnection.connect(database_url) as slow:
            await mp.append("job-slow", NewMessage("sent"), connection=slow)
            await Jobs(mp).append(2)
            jobs = await Jobs.create(mp, start="now", ordered_by="stream")
            await jobs.append(2)
            await slow.commit()
        assert positions(await jobs.pull(limit=1)) == [1]
        async with make_mp() as other:
            assert await Jobs(other).drain() == [4, 5]

    async def test_a_message_that_is_no_longer_in_the_log_is_parked(self, jobs: Jobs) -> None:
        await jobs.append(3)
        tasks = await jobs.pull()
        await jobs.settle(retry=tasks, after=0)
        await jobs.execute('delete from {}.messages where "position" = 2')
        assert positions(await jobs.pull()) == [1, 3]
        [parked] = await jobs.rows(state="parked")
        assert (parked.position, parked.reason) == (2, "its message is no longer in the log")


class TestWhoMayPull:
    async def test_one_that_is_unknown(self, mp: Milepost) -> None:
        with pytest.raises(UnknownSubscription, match="default/emails.*create_subscription"):
            await mp.pull("emails")

    async def test_one_that_was_deleted(self, jobs: Jobs) -> None:
        await jobs.append(2)
        tasks = await jobs.pull()
        await jobs.managed.delete()
        with pytest.raises(UnknownSubscription):
            await jobs.pull()
        assert (await jobs.settle(ack=tasks)).refused == tuple(tasks)

    async def test_one_with_handlers(self, mp: Milepost) -> None:
        @mp.subscription("invoices", category="job")
        async def handle(message: Message[Any]) -> None: ...

        await mp.run_until_idle()
        with pytest.raises(MilepostError, match='has handlers.*create another subscription, with tracking="all"'):
            await mp.pull("invoices")

    async def test_one_for_consumers(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", category="job")
        with pytest.raises(MilepostError, match=r'is for consumers: use mp\.consumer\("shipping"\)'):
            await mp.pull("shipping")

    async def test_of_another_group(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(1)
        async with make_mp(group="others") as other:
            with pytest.raises(UnknownSubscription):
                await other.pull("emails")
            assert len(await other.pull("default/emails")) == 1

    async def test_progress_has_to_be_in_postgresql(self, make_mp: MakeMilepost) -> None:
        async with make_mp(progress=MemoryProgress()) as mp:
            with pytest.raises(MilepostError, match="outside of PostgreSQL"):
                await mp.pull("emails")
            with pytest.raises(MilepostError, match="outside of PostgreSQL"):
                await mp.settle(ack="1-1-" + "0" * 32)

    @pytest.mark.parametrize(
        "options",
        [{"limit": 0}, {"limit": 10_001}, {"wait": -1}, {"wait": 3601}, {"timeout": 0}, {"limit": True}],
    )
    async def test_wrong_values(self, jobs: Jobs, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"{next(iter(options))}: .* wanted"):
            await jobs.pull(**options)

    async def test_a_function_cannot_be_stored(self, mp: Milepost) -> None:
        from milepost import by_function

        with pytest.raises(ValueError, match="function"):
            await Jobs.create(mp, ordered_by=by_function(lambda message: 1))
        with pytest.raises(ValueError, match="rules"):
            await Jobs.create(mp, retry=Retry(rules={ValueError: Retry.never}))


class TestClaims:
    async def test_each_goes_to_one_puller(self, jobs: Jobs, make_mp: MakeMilepost) -> None:
        await jobs.append(250)
        async with make_mp() as second, make_mp() as third:
            others = [Jobs(each) for each in (second, third)]
            pulled = await asyncio.gather(*(each.pull(limit=30) for each in [jobs, *others] * 3))
        got = [position for tasks in pulled for position in positions(tasks)]
        assert len(got) == len(set(got)) == 250

    async def test_a_late_settlement_is_refused(self, jobs: Jobs, clock: Clock) -> None:
        await jobs.append(2)
        [late, other] = await jobs.pull(timeout=30)
        await clock.advance(31)
        assert await jobs.pull() == ()
        [row, _] = await jobs.rows(state="retrying")
        assert (row.attempts, row.total) == (1, 1)
        assert row.reason.startswith("its claim expired: ")
        assert (await jobs.settle(ack=late)).refused == (late,)
        assert (await jobs.settle(extend=other)).refused == (other,)
        await clock.advance(10)
        again = await jobs.pull()
        assert [(task.position, task.attempt) for task in again] == [(1, 2), (2, 2)]
        assert (await jobs.settle(ack=[late, *again])).refused == (late,)
        assert await jobs.rows() == []

    async def test_what_was_asked_twice_is_remembered_for_a_while(self, jobs: Jobs, clock: Clock) -> None:
        await jobs.append(30)
        tasks = await jobs.pull(timeout=3600)
        ids = [uuid4() for _ in tasks]
        for id_, task in zip(ids[:15], tasks, strict=False):
            await jobs.settle(ack=task, id=id_)
        await clock.advance(240)
        assert (await jobs.settle(ack=tasks[0], id=ids[0])).moved == (tasks[0],)
        await clock.advance(120)
        for id_, task in zip(ids[15:], tasks[15:], strict=True):
            await jobs.settle(ack=task, id=id_)
        assert (await jobs.settle(ack=tasks[0], id=ids[0])).refused == (tasks[0],)
        [(kept,)] = await jobs.execute("select count(*) from {}.settled")
        assert kept == 16

    async def test_the_second_of_two_at_once_is_told_what_the_first_is(self, jobs: Jobs) -> None:
        await jobs.append(50)
        for task in await jobs.pull():
            id_ = uuid4()
            results = await asyncio.gather(*(jobs.settle(ack=task, id=id_) for _ in range(3)))
            assert [result.moved for result in results] == [(task,)] * 3
        assert (await jobs.managed.info()).lag.positions == 0

    async def test_one_that_nobody_has_noticed_is_not(self, jobs: Jobs, clock: Clock) -> None:
        await jobs.append(1)
        tasks = await jobs.pull(timeout=30)
        await clock.advance(31)
        assert (await jobs.settle(ack=tasks)).moved == tuple(tasks)

    async def test_extending(self, jobs: Jobs, clock: Clock) -> None:
        await jobs.append(2)
        [longer, lost] = await jobs.pull(timeout=30)
        assert (await jobs.settle(extend=[longer], timeout=100)).moved == (longer,)
        await clock.advance(31)
        await jobs.pull()
        assert (await jobs.settle(ack=[longer, lost])).refused == (lost,)

    async def test_the_subscription_says_how_long(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, timeout=500)
        await jobs.append(1)
        [task] = await jobs.pull()
        await clock.advance(400)
        await jobs.settle(extend=task)
        await clock.advance(400)
        assert await jobs.pull() == ()
        assert await jobs.states() == {1: "running"}
        await clock.advance(101)
        assert await jobs.pull() == ()
        assert await jobs.states() == {1: "retrying"}

    async def test_an_expired_claim_ends_in_parked_at_the_limit(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, retry=Retry(attempts=3, delay=100, factor=1, jitter=0))
        await jobs.append(1)
        for attempt in (1, 2, 3):
            [task] = await jobs.pull(timeout=1000)
            assert task.attempt == attempt
            await clock.advance(1001)
            assert await jobs.pull() == ()
            await clock.advance(101)
        [row] = await jobs.rows()
        assert (row.state, row.attempts, row.due) == ("parked", 3, None)
        assert row.consumer is not None
        assert row.consumer in row.reason

    async def test_the_wait_between_attempts_is_the_policys(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, retry=Retry(attempts=4, delay=1000, factor=3, max_delay=5000, jitter=0))
        await jobs.append(1)
        for wait in (1000, 3000, 5000):
            [task] = await jobs.pull(timeout=100_000)
            await jobs.settle(retry=task)
            [row] = await jobs.rows()
            assert row.due is not None
            assert (row.due - row.since).total_seconds() == pytest.approx(wait, abs=1)
            await clock.advance(wait - 100)
            assert await jobs.pull() == ()
            await clock.advance(100)
        [task] = await jobs.pull()
        await jobs.settle(retry=task)
        assert await jobs.states() == {1: "parked"}

    async def test_hostile_tokens_are_refused(self, jobs: Jobs) -> None:
        await jobs.append(1)
        [task] = await jobs.pull()
        subscription, position, claim = task.token.split("-")
        hostile = [
            "",
            "x",
            "1-1",
            "0-0-" + "0" * 32,
            f"{subscription}-{position}-{'0' * 32}",
            f"{subscription}-{position}-{claim.upper()}",
            f"{subscription}-{position}-{claim}\n",
            f"{subscription}-{int(position) + 1}-{claim}",
            f"{int(subscription) + 1}-{position}-{claim}",
            f"{'9' * 40}-{position}-{claim}",
            f"{subscription}-٣-{claim}",
            "'; drop schema public; --",
            "\0",
            "\ud800",
        ]
        result = await jobs.settle(ack=hostile)
        assert (result.moved, result.refused) == ((), tuple(hostile))
        assert await jobs.states() == {1: "running"}
        assert (await jobs.settle(ack=[task.token])).moved == (task.token,)


class TestSettling:
    async def test_every_outcome(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(5)
        ack, retry, park, skip, extend = tasks = await jobs.pull()
        result = await jobs.settle(
            ack=ack, retry=[retry.token], park={park: "no address"}, skip=(skip,), extend=[extend]
        )
        assert set(result.moved) == {ack, retry.token, park, skip, extend}
        assert await jobs.states() == {2: "retrying", 3: "parked", 5: "running"}
        [parked] = await jobs.rows(state="parked")
        assert (parked.reason, parked.attempts, parked.total) == ("no address", 1, 1)
        again = await jobs.settle(ack=tasks[:4])
        assert (again.moved, again.refused) == ((), tuple(tasks[:4]))

    async def test_a_reason_may_be_an_exception(self, jobs: Jobs) -> None:
        await jobs.append(2)
        one, other = await jobs.pull()
        await jobs.settle(retry={one: _raised("no \0 such \ud800 address")}, park=other, reason="given up")
        retrying, parked = await jobs.rows()
        assert retrying.reason == "ValueError: no  such ? address"
        assert "Traceback" in retrying.error
        assert "raise ValueError" in retrying.error
        assert (parked.reason, parked.error) == ("given up", "")

    async def test_after_is_when_they_come_again(self, jobs: Jobs, clock: Clock) -> None:
        await jobs.append(2)
        await jobs.settle(retry=await jobs.pull(), after=1000)
        await clock.advance(900)
        assert await jobs.pull() == ()
        await clock.advance(101)
        tasks = await jobs.pull()
        assert [task.attempt for task in tasks] == [2, 2]
        await jobs.settle(retry=tasks, after=0)
        assert len(await jobs.pull()) == 2

    async def test_nothing_to_settle(self, mp: Milepost) -> None:
        result = await mp.settle(ack=[], retry=())
        assert (result.moved, result.refused) == ((), ())

    async def test_the_same_twice(self, jobs: Jobs) -> None:
        await jobs.append(1)
        [task] = await jobs.pull()
        with pytest.raises(ValueError, match="position 1 is in ack and retry"):
            await jobs.settle(ack=task, retry=task.token)
        result = await jobs.settle(ack=[task, task.token, task])
        assert result.moved == (task, task.token, task)

    async def test_of_several_subscriptions_at_once(self, mp: Milepost) -> None:
        one, other = await Jobs.create(mp, "one"), await Jobs.create(mp, "other", ordered_by="stream")
        await one.append(3)
        tasks = [*await one.pull(), *await other.pull()]
        result = await one.settle(ack=tasks[::-1])
        assert len(result.moved) == 4
        assert await one.states() == {}
        assert await other.states() == {2: "waiting", 3: "waiting"}

    async def test_wrong_values(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        await jobs.append(3)
        tasks = await jobs.pull()
        with pytest.raises(TypeError, match="ack: a delivery or its token is wanted, not 7"):
            await jobs.settle(ack=[7])
        with pytest.raises(ValueError, match="after: .* wanted"):
            await jobs.settle(retry=tasks, after=-1)
        with pytest.raises(ValueError, match="timeout: .* wanted"):
            await jobs.settle(extend=tasks, timeout=0)
        monkeypatch.setattr("milepost.engine.pull.settle.MAX_SETTLED_DELIVERIES", 2)
        with pytest.raises(TooLarge, match="more than 2"):
            await jobs.settle(ack=tasks)
        assert len((await jobs.settle(ack=tasks[:2])).moved) == 2

    async def test_done_ones_are_kept_for_as_long_as_it_says(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, keep_done=600)
        await jobs.append(3)
        one, two, three = await jobs.pull()
        await jobs.settle(ack=[one, two], skip=three)
        assert await jobs.states() == {1: "done", 2: "done", 3: "done"}
        [row] = [row for row in await jobs.rows() if row.position == 1]
        assert (row.attempts, row.total, row.waiting_behind) == (1, 1, None)
        assert [traced.state for traced in await mp.trace("job-1")] == ["done"] * 3
        assert (await jobs.managed.retry([1])).refused == {1: "it is done"}
        await clock.advance(500)
        await jobs.pull()
        assert len(await jobs.rows()) == 3
        await clock.advance(101)
        await jobs.pull()
        assert await jobs.rows() == []

    async def test_what_was_kept_goes_some_at_a_time(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, keep_done=600)
        await jobs.append(1200)
        await jobs.settle(ack=await jobs.pull(limit=2000))
        await clock.advance(601)
        await jobs.pull()
        assert await jobs.managed.count_deliveries() == 200
        await jobs.pull()
        assert await jobs.managed.count_deliveries() == 0


def _raised(text: str) -> ValueError:
    """An error as it is caught."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it is this one
        raise ValueError(text)
    return caught.value


class TestOrder:
    async def test_one_of_a_key_at_a_time(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(3, "job-a")
        await jobs.append(3, "job-b")
        for batch in ([1, 4], [2, 5], [3, 6]):
            tasks = await jobs.pull()
            assert positions(tasks) == batch
            assert await jobs.pull() == ()
            await jobs.settle(ack=tasks)
        assert await jobs.rows() == []

    async def test_by_a_property(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by=by_property("customer"))
        customers: list[int | str] = [1, 2, 1, "1"]
        for number, customer in enumerate(customers):
            await mp.append(f"job-{number}", NewMessage("sent", properties={"customer": customer}))
        assert positions(await jobs.pull()) == [1, 2, 4]

    async def test_a_limit_leaves_no_gap(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.spread(10)
        await jobs.append(1, "job-0")
        first = await jobs.pull(limit=4)
        second = await jobs.pull(limit=20)
        assert (positions(first), positions(second)) == ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10])
        await jobs.settle(ack=[*first, *second])
        assert positions(await jobs.pull()) == [11]

    async def test_a_retrying_one_holds_its_key(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(2)
        await jobs.settle(retry=await jobs.pull(), after=1000)
        await jobs.append(1)
        assert await jobs.pull() == ()
        await clock.advance(1001)
        assert await jobs.drain() == [1, 2, 3]

    async def test_a_parked_one_blocks_its_key_until_a_person_decides(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="block")
        await jobs.append(2)
        await jobs.settle(park=await jobs.pull())
        await jobs.append(1)
        assert await jobs.pull() == ()
        assert await jobs.states() == {1: "parked", 2: "waiting", 3: "waiting"}
        await jobs.managed.skip([1])
        assert await jobs.drain() == [2, 3]

    async def test_or_lets_it_go_on(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="continue")
        await jobs.append(3)
        await jobs.settle(park=await jobs.pull())
        assert await jobs.drain() == [2, 3]
        assert await jobs.states() == {1: "parked"}

    @pytest.mark.parametrize(("on_park", "behind"), [("continue", None), ("block", 1)])
    async def test_what_is_told_of_the_one_behind_it(self, mp: Milepost, on_park: str, behind: int | None) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park=on_park)
        await jobs.append(3)
        await jobs.settle(park=await jobs.pull())
        parked, second, third = await jobs.rows()
        assert (parked.waiting_behind, second.waiting_behind) == (2 if behind else 0, behind)
        assert third.waiting_behind == (behind or 2)
        traced = await mp.trace("job-1")
        told = [str(each).rpartition("default/emails")[2].strip(" :") for each in traced]
        if behind is None:
            assert told[1] == "waiting, the next of its key"
            assert "wait" not in told[0]
            assert told[2].startswith("waiting behind job-1 version 2")
        else:
            assert told[0].endswith("2 wait behind it, first job-1 version 2 (position 2)")
            assert all(each.startswith("waiting behind job-1 version 1") for each in told[1:])

    async def test_what_waits_beyond_a_replay_stays_behind_what_it_waits_for(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="block")
        await jobs.append(3)
        await jobs.settle(park=await jobs.pull())
        await jobs.managed.replay("beginning", 1)
        assert await jobs.drain() == [1, 2, 3]

    async def test_a_parked_one_that_is_retried_holds_its_key_again(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="continue")
        await jobs.append(3)
        await jobs.settle(park=await jobs.pull())
        [second] = await jobs.pull()
        await jobs.managed.retry([1])
        # One of a key at a time: the second is out already.
        assert await jobs.pull() == ()
        await jobs.settle(ack=second)
        assert positions(await jobs.pull()) == [1]
        assert await jobs.heads() == {"job-1": 1}

    async def test_it_goes_before_one_that_waits(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="continue")
        await jobs.append(3)
        await jobs.settle(park=await jobs.pull())
        assert await jobs.heads() == {"job-1": 2}
        await jobs.managed.retry([1])
        assert await jobs.heads() == {"job-1": 1}
        assert await jobs.drain() == [1, 2, 3]

    async def test_skipping_what_waits_changes_nothing_for_the_others(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(4)
        [first] = await jobs.pull()
        await jobs.managed.skip([2, 4])
        assert await jobs.pull() == ()
        await jobs.settle(ack=first)
        assert await jobs.drain() == [3]
        assert await jobs.states() == {2: "skipped", 4: "skipped"}

    async def test_one_that_expires_at_the_limit_frees_its_key(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="continue", retry=Retry(attempts=1))
        await jobs.append(2)
        await jobs.pull(timeout=5)
        await clock.advance(6)
        assert positions(await jobs.pull()) == [2]
        assert await jobs.states() == {1: "parked", 2: "running"}

    async def test_many_keys_at_once(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await mp.append_many({f"job-{number}": [NewMessage("a"), NewMessage("b")] for number in range(700)})
        for _ in range(2):
            pulled = await jobs.pull(limit=1000)
            tasks = [*pulled]
            while len(tasks) < 700 and pulled.more:
                pulled = await jobs.pull(limit=1000)
                tasks += pulled
            assert len({task.message.stream for task in tasks}) == 700
            assert len((await jobs.settle(ack=tasks)).moved) == 700
        assert await jobs.rows() == []


class TestPeople:
    async def test_retried_ones_go_before_new_ones_and_are_counted_anew(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, retry=Retry.never)
        await jobs.append(3)
        await jobs.settle(retry=await jobs.pull())
        await jobs.append(3)
        assert (await jobs.managed.retry(all=True, limit=2)).moved == 2
        tasks = await jobs.pull(limit=2)
        assert [(task.position, task.attempt) for task in tasks] == [(1, 1), (2, 1)]
        [row] = await jobs.rows(up_to=1)
        assert (row.attempts, row.total) == (0, 1)

    async def test_retried_ones_are_safe_until_settled(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, retry=Retry.never)
        await jobs.append(1)
        await jobs.settle(park=await jobs.pull())
        await jobs.managed.retry([1])
        await jobs.pull(timeout=5)
        await clock.advance(6)
        await jobs.pull()
        assert await jobs.states() == {1: "parked"}

    async def test_what_runs_is_left_alone(self, jobs: Jobs) -> None:
        await jobs.append(1)
        tasks = await jobs.pull()
        assert (await jobs.managed.skip([1])).refused == {1: "it is running: wait for how that ends"}
        assert (await jobs.settle(ack=tasks)).refused == ()

    async def test_a_paused_subscription_gives_nothing(self, jobs: Jobs) -> None:
        await jobs.append(4)
        tasks = await jobs.pull(limit=1)
        await jobs.settle(retry=await jobs.pull(limit=1), after=0)
        await jobs.managed.pause()
        nothing = await jobs.pull()
        assert (nothing, nothing.more) == ((), False)
        assert (await jobs.settle(ack=tasks)).refused == ()
        await jobs.managed.resume()
        assert await jobs.drain() == [2, 3, 4]

    async def test_it_can_be_moved(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(4)
        [task] = await jobs.pull()
        await jobs.managed.move(2)
        assert (await jobs.settle(ack=task)).refused == ()
        assert await jobs.drain() == [2, 3, 4]
        await jobs.append(1)
        await jobs.managed.move("beginning")
        assert await jobs.drain() == [1, 2, 3, 4, 5]

    async def test_a_claim_on_what_comes_again_is_refused(self, jobs: Jobs) -> None:
        await jobs.append(2)
        tasks = await jobs.pull()
        await jobs.managed.move("beginning")
        assert (await jobs.settle(ack=tasks)).refused == tuple(tasks)
        assert await jobs.drain() == [1, 2]

    async def test_a_replay_marks_what_had_been_handled(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(4)
        for _ in range(3):
            await jobs.settle(ack=await jobs.pull())
        assert await jobs.managed.replay(1, 2) == 1
        seen = []
        while tasks := await jobs.pull():
            seen += [(task.position, task.replay) for task in tasks]
            await jobs.settle(ack=tasks)
        assert seen == [(2, True), (4, False)]

    async def test_and_not_what_a_filter_of_before_rejected(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, where="n > 2")
        for n in range(5):
            await mp.append("job-1", NewMessage("sent", properties={"n": n}))
        await jobs.settle(ack=await jobs.pull())
        await jobs.managed.update(where="n > 0")
        await jobs.managed.replay("beginning")
        assert [(task.position, task.replay) for task in await jobs.pull()] == [
            (2, False),
            (3, False),
            (4, True),
            (5, True),
        ]

    async def test_also_of_what_is_kept_though_it_is_done(self, mp: Milepost) -> None:
        """And not of what had been given up, or was with somebody."""
        jobs = await Jobs.create(mp, keep_done=3600, timeout=3600)
        await jobs.append(5)
        first, second, third, *_ = await jobs.pull()
        await jobs.settle(ack=[first, second], park=third)
        assert await jobs.states() == {1: "done", 2: "done", 3: "parked", 4: "running", 5: "running"}
        assert await jobs.managed.replay(0, 4) == 2
        assert [(task.position, task.replay) for task in await jobs.pull()] == [
            (1, True),
            (2, True),
            (3, False),
            (4, False),
        ]

    async def test_a_replay_keeps_the_order(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream")
        await jobs.append(2, "job-a")
        await jobs.append(2, "job-b")
        await jobs.settle(ack=await jobs.pull())
        assert await jobs.heads() == {"job-a": 2, "job-b": 4}
        await jobs.managed.replay("beginning", 1)
        # Of the first key what comes again is first, though a later one was waiting.
        assert await jobs.drain() == [1, 4, 2]
        assert await jobs.rows() == []


class TestChanges:
    async def test_another_limit_of_attempts_holds_at_once(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(1)
        tasks = await jobs.pull()
        await jobs.managed.update(retry=Retry(attempts=1))
        await jobs.settle(retry=tasks)
        assert await jobs.states() == {1: "parked"}

    async def test_another_filter_holds_for_what_was_not_scanned(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp)
        for number in range(4):
            await mp.append("job-1", NewMessage("sent", properties={"n": number}))
        await jobs.pull(limit=2)
        await jobs.managed.update(where="n != 2")
        assert positions(await jobs.pull()) == [4]

    async def test_another_order(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp)
        await jobs.append(4)
        tasks = await jobs.pull(limit=2)
        await jobs.settle(retry=tasks, after=0)
        await jobs.managed.update(ordered_by="stream")
        assert await jobs.drain() == [1, 2, 3, 4]
        await jobs.append(3)
        assert positions(await jobs.pull()) == [5]
        await jobs.managed.update(ordered_by=None)
        assert positions(await jobs.pull()) == [6, 7]

    async def test_another_policy_for_what_is_parked(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", on_park="block")
        await jobs.append(2)
        await jobs.settle(park=await jobs.pull())
        assert await jobs.pull() == ()
        await jobs.managed.update(on_park="continue")
        tasks = await jobs.pull()
        assert positions(tasks) == [2]
        await jobs.settle(retry=tasks, after=0)
        await jobs.managed.update(on_park="block")
        assert await jobs.pull() == ()

    async def test_another_tracking_is_another_subscription(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp)
        with pytest.raises(ValueError, match="which stays so: create another subscription, with start="):
            await jobs.managed.update(tracking="failures")
        with pytest.raises(ValueError, match="tracking: default/emails tracks otherwise"):
            await mp.create_subscription("emails", category="job")
        [position] = await jobs.append()
        assert positions(await jobs.pull()) == [position]


class TestInfo:
    async def test_what_is_pulled_is_in_flight(self, jobs: Jobs, clock: Clock) -> None:
        await jobs.append(5)
        info = await jobs.managed.info()
        # It waits for no program: whoever pulls has all that is needed.
        assert (info.status, info.in_flight, info.lag.positions) == ("running", 0, 5)
        tasks = await jobs.pull(3)
        info = await jobs.managed.info()
        assert (info.status, info.in_flight, info.lag.positions) == ("running", 3, 2)
        await jobs.settle(ack=tasks[:1], retry=tasks[1:2])
        info = await jobs.managed.info()
        assert (info.in_flight, info.retrying) == (1, 1)
        [listed] = await jobs.mp.subscriptions()
        assert listed.in_flight == 1

    async def test_who_settles_tells_rate_and_last_error(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("milepost.engine.pull.reports.PULL_REPORT_SECONDS", 0.2)
        await jobs.append(30)
        await jobs.settle(retry=await jobs.pull(1), reason="the mail server is down\0")
        info = await jobs.managed.info()
        assert (info.last_error, info.rate) == ("the mail server is down", 0)
        assert info.last_error_at is not None
        for _ in range(10):
            await jobs.settle(ack=await jobs.pull(2))
            await asyncio.sleep(0.03)
        info, statistics = await jobs.managed.info(), await jobs.managed.statistics()
        assert info.rate > 0
        # What failed before is still the last error.
        assert info.last_error == "the mail server is down"
        assert (statistics.rate, statistics.in_flight) == (info.rate, 0)
        await jobs.pull(3)
        assert (await jobs.managed.statistics()).in_flight == 3

    async def test_what_is_asked_again_is_not_told_again(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("milepost.engine.pull.reports.PULL_REPORT_SECONDS", 0)
        await jobs.append(2)
        first, second = await jobs.pull()
        asked: dict[str, Any] = {"park": first, "reason": "the first", "id": uuid4()}
        await jobs.settle(**asked)
        await jobs.settle(park=second, reason="the second")
        assert (await jobs.settle(**asked)).moved == (first,)
        assert (await jobs.managed.info()).last_error == "the second"

    async def test_who_settles_tells_how_long_it_took(
        self, jobs: Jobs, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moment = 100.0
        monkeypatch.setattr("milepost.engine.pull.reports.monotonic", lambda: moment)
        monkeypatch.setattr("milepost.engine.pull.reports.PULL_REPORT_SECONDS", 0)
        await jobs.append(104)
        assert (await jobs.managed.statistics()).latency_50 is None
        tasks = await jobs.pull(101)
        for task in tasks[:100]:
            moment += 0.01
            await jobs.settle(ack=task.token if task.position % 2 else task)
        await jobs.settle(extend=tasks[100:])
        found = await jobs.managed.statistics()
        assert (found.latency_50, found.latency_90, found.latency_99) == (0.51, 0.91, 1.0)
        info = await jobs.managed.info()
        assert info.attempts == 100
        assert info.handling_seconds == pytest.approx(50.5)
        # Another process knows nothing of when it was pulled, and tells of its own.
        async with make_mp() as other:
            await other.settle(ack=tasks[100].token)
            assert (await jobs.managed.info()).attempts == 100
            slow = await Jobs(other).pull(2)
            moment += 9
            await other.settle(retry=slow)
        assert (await jobs.managed.statistics()).latency_99 == 9

    async def test_paused_and_stalled(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, stall_after=1)
        await jobs.append(2)
        await jobs.settle(retry=await jobs.pull())
        assert (await jobs.managed.info()).status == "stalled"
        await jobs.managed.pause()
        assert (await jobs.managed.info()).status == "paused"


class TestLimits:
    async def test_a_subscription_whose_messages_fail_stalls(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, stall_after=3, retry=Retry(delay=1, jitter=0))
        await jobs.append(10)
        await jobs.settle(retry=await jobs.pull(limit=3))
        info = await jobs.managed.info()
        assert info.stalled == "the last 3 attempts failed"
        [probe] = await jobs.pull()
        assert await jobs.pull() == ()
        await jobs.settle(retry=probe, after=1000)
        await clock.advance(2)
        [probe] = await jobs.pull()
        await jobs.settle(ack=probe)
        assert (await jobs.managed.info()).stalled is None
        assert len(await jobs.pull()) == 8

    async def test_an_expired_claim_counts_for_that_too(self, mp: Milepost, clock: Clock) -> None:
        jobs = await Jobs.create(mp, stall_after=2, retry=Retry(delay=100))
        await jobs.append(4)
        await jobs.pull(limit=2, timeout=5)
        await clock.advance(6)
        await jobs.pull()
        assert (await jobs.managed.info()).stalled == "the last 2 attempts failed"

    async def test_only_so_many_may_wait_behind_others(self, mp: Milepost) -> None:
        jobs = await Jobs.create(mp, ordered_by="stream", max_waiting=5)
        await jobs.append(20)
        first = await jobs.pull(limit=3)
        await jobs.pull(limit=3)
        waiting = (await jobs.managed.info()).waiting
        assert 5 <= waiting < 19
        assert (await jobs.pull(limit=3)).more
        assert (await jobs.managed.info()).waiting == waiting
        await jobs.settle(ack=first)
        assert await jobs.drain() == list(range(2, 21))

    async def test_counts_are_right_and_few(self, jobs: Jobs) -> None:
        await jobs.append(200)
        for _ in range(200):
            await jobs.settle(retry=await jobs.pull(limit=1), after=100)
        assert (await jobs.managed.info()).retrying == 200
        [[rows]] = await jobs.execute("select count(*) from {}.counts")
        assert rows < 200


async def test_messages_that_are_not_wanted_are_passed(mp: Milepost) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(50, "other-1")
    assert await jobs.pull() == ()
    assert (await jobs.managed.info()).lag.positions == 0


class TestManySubscriptions:
    """What was read ahead of one is not thrown away because others are pulled."""

    @pytest.fixture
    async def several(self, mp: Milepost) -> list[Jobs]:
        several = [await Jobs.create(mp, f"emails-{number}") for number in range(20)]
        await mp.append("job-1", [NewMessage("sent", "x" * 100) for _ in range(60)])
        return several

    async def test_what_was_read_ahead_is_of_use(
        self, mp: Milepost, several: list[Jobs], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: Counter[int] = Counter()
        log_page = Reader.log_page

        async def noted(reader: Reader, *arguments: Any, **bounds: Any) -> Page:
            page = await log_page(reader, *arguments, **bounds)
            read.update(message.position for message in page)
            return page

        monkeypatch.setattr(Reader, "log_page", noted)
        for number in range(1, 16):
            for jobs in several:
                assert positions(await jobs.pull(limit=1)) == [number]
        assert read.total() < 2 * 60 * len(several)

    async def test_it_is_bounded_for_all_together(
        self, mp: Milepost, several: list[Jobs], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scanner, "MAX_READ_AHEAD_BYTES", 20_000)
        remembered: list[int] = []
        for number in range(1, 16):
            for jobs in several:
                assert positions(await jobs.pull(limit=1)) == [number]
                await self.all_read(mp)
                assert mp.puller.scanners.size <= 20_000
                remembered.append(len(list(mp.puller.scanners)))
        assert min(remembered[len(several) :]) < len(several)

    @pytest.fixture
    def may_read(self, mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
        """Who reads ahead waits for it."""
        event, log_page = asyncio.Event(), Reader.log_page

        async def held_up(reader: Reader, *arguments: Any, **bounds: Any) -> Page:
            if asyncio.current_task() in mp.puller.scanners.reads_under_way:
                await event.wait()
            return await log_page(reader, *arguments, **bounds)

        monkeypatch.setattr(Reader, "log_page", held_up)
        return event

    @pytest.mark.shard("variants", fast=["20"])
    @pytest.mark.parametrize("at_once", [0, 20])
    async def test_it_is_bounded_also_when_nobody_pulls_any_more(
        self,
        mp: Milepost,
        several: list[Jobs],
        may_read: asyncio.Event,
        monkeypatch: pytest.MonkeyPatch,
        at_once: int,
    ) -> None:
        monkeypatch.setattr(scanner, "MAX_READ_AHEAD_BYTES", 10_000)
        monkeypatch.setattr(scanner, "MAX_CONCURRENT_READS", at_once)
        await asyncio.gather(*(jobs.pull(limit=10) for jobs in several))
        may_read.set()
        await self.all_read(mp)
        assert 5_000 < mp.puller.scanners.size <= 10_000

    async def test_few_read_ahead_at_once(
        self, mp: Milepost, several: list[Jobs], may_read: asyncio.Event
    ) -> None:
        await asyncio.gather(*(jobs.pull(limit=10) for jobs in several))
        assert len(mp.puller.scanners.reads_under_way) == scanner.MAX_CONCURRENT_READS
        may_read.set()
        await self.all_read(mp)
        await asyncio.gather(*(jobs.pull(limit=10) for jobs in several))
        for jobs in several:
            assert await jobs.drain() == list(range(21, 61))

    async def all_read(self, mp: Milepost) -> None:
        """Until nobody reads ahead."""
        while reading := mp.puller.scanners.reads_under_way:
            await asyncio.wait(reading)

    async def test_those_pulled_longest_ago_are_forgotten(
        self, mp: Milepost, several: list[Jobs], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scanner, "MAX_SCANNERS", 2)
        for jobs in (several[0], several[1], several[0], several[2]):
            await jobs.pull(limit=1)
        assert [each.name for each in mp.puller.scanners] == [several[0].name, several[2].name]


async def test_reading_ahead_holds_no_more_than_it_should(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "MAX_KEPT_PART_BYTES", 500)
    jobs = await Jobs.create(mp)
    await mp.append("job-1", [NewMessage("sent", "x" * 100) for _ in range(40)])
    got: list[int] = []
    while tasks := await jobs.pull(limit=4):
        got += positions(tasks)
        stock = next(iter(mp.puller.scanners)).part_ahead
        assert stock is None or stock.size <= 500
    assert got == list(range(1, 41))
