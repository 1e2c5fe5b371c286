"""What listeners are told of what is pulled."""

import asyncio
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import psycopg
import pytest

from engine.notes import Notes
from engine.pulling import Clock, Jobs
from milepost import Milepost, NewMessage, Retry
from milepost.engine.observe.counters import EventCounter
from milepost.engine.observe.events import (
    AttemptFailed,
    Event,
    Handled,
    MessageEvent,
    Parked,
    Paused,
    Recovered,
    Resumed,
    RetryScheduled,
    Skipped,
    Stalled,
)
from milepost.log.postgres.reader import Reader
from milepost.log.query import Page
from support import MakeMilepost


async def test_what_is_done_and_how_long_it_took(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(2)
    tasks = await jobs.pull()
    pulled = monotonic()
    await asyncio.sleep(0.001)
    had = [monotonic() - pulled]
    await jobs.settle(ack=tasks[0])
    had.append(monotonic() - pulled)
    await jobs.settle(ack=tasks[1])
    told = [(event.subscription, event.group, event.position, event.attempt) for event in notes.of(Handled)]
    assert told == [("emails", "default", 1, 1), ("emails", "default", 2, 1)]
    first, second = (event.seconds for event in notes.of(Handled))
    assert had[0] <= first < second
    assert had[1] <= second
    assert len(notes.events) == 2


async def test_what_fails(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp, retry=Retry(attempts=2, delay=600, jitter=0))
    await jobs.append(1)
    error = ValueError("no such address")
    [task] = await jobs.pull()
    await jobs.settle(retry={task: error}, after=0)
    [task] = await jobs.pull()
    await jobs.settle(retry={task: error})
    assert notes.names == ["AttemptFailed", "RetryScheduled", "AttemptFailed", "Parked"]
    assert [(event.attempt, event.error) for event in notes.of(AttemptFailed)] == [(1, error), (2, error)]
    [parked] = notes.of(Parked)
    assert (parked.position, parked.attempt, parked.reason) == (1, 2, "ValueError: no such address")


async def test_when_it_is_tried_again_is_what_the_row_says(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp, retry=Retry(delay=600, jitter=0))
    await jobs.append(1)
    await jobs.settle(retry=await jobs.pull(), reason="later")
    [scheduled] = notes.of(RetryScheduled)
    [row] = await jobs.rows()
    assert row.due is not None
    assert abs((scheduled.due - row.due).total_seconds()) < 0.001
    assert scheduled.reason == "later"


async def test_what_is_decided_is_no_failure(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(3)
    park, skip, retry = await jobs.pull()
    await jobs.settle(park={park: "not now"}, skip={skip: "never"}, retry={retry: "again"}, after=0)
    told = [(type(event), event.position, event.attempt, event.reason) for event in notes.of(MessageEvent)]
    told.sort(key=lambda event: event[1])
    assert told == [(Parked, 1, 1, "not now"), (Skipped, 2, 1, "never"), (RetryScheduled, 3, 1, "again")]
    assert notes.of(RetryScheduled)[0].due <= datetime.now(UTC)


async def test_claims_that_expired(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp, timeout=5, retry=Retry(attempts=2, delay=0, jitter=0))
    clock = Clock(mp)
    await jobs.append(1)
    for _ in range(2):
        await jobs.pull()
        await clock.advance(600)
    assert await jobs.pull() == ()
    assert notes.names == ["AttemptFailed", "RetryScheduled", "AttemptFailed", "Parked"]
    assert [event.attempt for event in notes.of(AttemptFailed)] == [1, 2]
    assert [type(event.error) for event in notes.of(AttemptFailed)] == [TimeoutError] * 2
    assert all(600 <= event.seconds < 1200 for event in notes.of(AttemptFailed))
    assert "its claim expired" in notes.of(Parked)[0].reason


async def test_claims_of_large_messages_that_expired_are_read_in_parts(
    mp: Milepost, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    page_at = Reader.page_at

    async def noted(reader: Reader, *arguments: Any) -> Page:
        page = await page_at(reader, *arguments)
        read.append(len(page))
        return page

    jobs = await Jobs.create(mp, timeout=5)
    await mp.append("job-1", [NewMessage("sent", "x" * 1000) for _ in range(10)])
    await jobs.pull()
    await Clock(mp).advance(6)
    monkeypatch.setattr(Reader, "page_at", noted)
    monkeypatch.setattr("milepost.engine.pull.reports.PAGE_BYTES", 2500)
    await jobs.pull()
    assert read == [3, 3, 3, 1]
    assert [event.position for event in notes.of(AttemptFailed)] == list(range(1, 11))


async def test_it_is_told_by_whoever_finds_it(make_mp: MakeMilepost, mp: Milepost) -> None:
    """A claim of another process that expired."""
    jobs = await Jobs.create(mp, timeout=5)
    await jobs.append(1)
    await jobs.pull()
    await Clock(mp).advance(6)
    async with make_mp() as other:
        notes = Notes(other)
        await Jobs(other).pull()
    assert notes.names == ["AttemptFailed", "RetryScheduled"]


async def test_what_is_extended_refused_or_settled_twice_is_not_told(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(1)
    tasks = await jobs.pull()
    await jobs.settle(extend=tasks)
    await jobs.settle(ack=tasks)
    result = await jobs.settle(ack=tasks)
    assert result.refused == tuple(tasks)
    assert notes.names == ["Handled"]


async def test_it_stalls_and_recovers(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp, stall_after=3, retry=Retry(delay=0, jitter=0))
    await jobs.append(10)
    while not notes.of(Stalled):
        await jobs.settle(retry=await jobs.pull(limit=3))
    while not notes.of(Recovered):
        await jobs.settle(ack=await jobs.pull(limit=1))
    assert [type(event) for event in notes.of(Stalled, Recovered)] == [Stalled, Recovered]
    assert "attempts failed" in notes.of(Stalled)[0].reason


async def test_it_is_paused_and_goes_on(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp)
    managed = mp.manage("emails")
    await jobs.pull()
    await managed.pause()
    await jobs.pull()
    await managed.resume()
    await jobs.pull()
    assert [type(event) for event in notes.of(Event)] == [Paused, Resumed]


async def test_figures_count_it(mp: Milepost) -> None:
    counting = EventCounter(mp.on_event)
    jobs = await Jobs.create(mp)
    await jobs.append(3)
    await jobs.settle(ack=await jobs.pull())
    [(of, figures)] = counting.figures()
    assert (of, figures.handled) == (("default", "emails"), 3)


async def test_an_async_listener_hears_the_rest_when_it_is_closed(make_mp: MakeMilepost) -> None:
    heard: list[int] = []
    mp = make_mp()

    @mp.on_event
    async def note(event: Handled) -> None:
        await asyncio.sleep(0.01)
        heard.append(event.position)

    async with mp:
        jobs = await Jobs.create(mp)
        await jobs.append(3)
        await jobs.settle(ack=await jobs.pull())
    assert heard == [1, 2, 3]


async def test_who_comes_later_listens_from_then_on(mp: Milepost, notes: Notes) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(2)
    first, second = await jobs.pull()
    await jobs.settle(ack=first)
    late = Notes(mp)
    await jobs.settle(ack=second)
    assert [event.position for event in late.of(Handled)] == [2]
    assert [event.position for event in notes.of(Handled)] == [1, 2]


async def test_done_is_told_to_who_comes_later_than_who_cares_for_nothing_of_it(mp: Milepost) -> None:
    @mp.on_event
    def note(event: Paused) -> None: ...

    jobs = await Jobs.create(mp)
    await jobs.append(1)
    tasks = await jobs.pull()
    late = Notes(mp)
    await jobs.settle(ack=tasks)
    assert late.names == ["Handled"]


async def test_what_was_pulled_in_a_transaction_and_is_settled_here(
    make_mp: MakeMilepost, mp: Milepost, database_url: str
) -> None:
    jobs = await Jobs.create(mp)
    await jobs.append(1)
    await jobs.settle(retry=await jobs.pull(), after=0)
    async with make_mp() as other:
        notes = Notes(other)
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            tasks = await Jobs(other).pull(connection=connection)
        assert notes.events == []
        await other.settle(ack=tasks)
        [handled] = notes.of(Handled)
    assert (handled.subscription, handled.group, handled.position, handled.attempt) == ("emails", "default", 1, 2)


async def test_an_older_answer_does_not_take_back_what_was_told(
    mp: Milepost, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await Jobs.create(mp, timeout=5)
    await jobs.append(1)
    await jobs.pull()
    await Clock(mp).advance(6)
    reached, go_on, page_at = asyncio.Event(), asyncio.Event(), Reader.page_at

    async def held_up(reader: Reader, *arguments: Any) -> Page:
        reached.set()
        await go_on.wait()
        return await page_at(reader, *arguments)

    monkeypatch.setattr(Reader, "page_at", held_up)
    late = asyncio.create_task(jobs.pull())
    await reached.wait()
    await mp.manage("emails").pause()
    await jobs.pull()
    go_on.set()
    await late
    assert [type(event) for event in notes.of(Paused, Resumed)] == [Paused]
    await mp.manage("emails").resume()
    await jobs.pull()
    assert [type(event) for event in notes.of(Paused, Resumed)] == [Paused, Resumed]
