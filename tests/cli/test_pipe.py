"""What processes say to the one that started them."""

import asyncio
import select

import msgspec
import pytest

from milepost.cli.run.reports import ProcessMeasurement, ProcessReport, ReportPipeReader, ReportPipeWriter
from milepost.contrib.gauges import MAX_CAUSE_BYTES, LogGauges, SubscriptionGauges
from milepost.engine.observe.counters import HISTOGRAM_BOUNDS_SECONDS, SubscriptionCounters

MUCH = 10**15
LONGEST = "\x01" * 512
"""A name whose characters are written with six each."""

WORDS: list[ProcessReport | ProcessMeasurement] = [
    ProcessReport(None),
    ProcessReport("does not work on its subscriptions"),
    SubscriptionCounters(
        LONGEST,
        handled=MUCH,
        failed=MUCH,
        retried=MUCH,
        parked=MUCH,
        skipped=MUCH,
        lost=MUCH,
        lanes=MUCH,
        seconds=MUCH / 3,
        times=[MUCH] * (len(HISTOGRAM_BOUNDS_SECONDS) + 1),
    ),
    LogGauges(
        horizon=MUCH, head=MUCH, held_for=1 / 3, held_by="x" * 200, held_lasting="x" * 220, application="\x01" * 63
    ),
    SubscriptionGauges(
        subscription=LONGEST,
        status="running",
        lag_positions=MUCH,
        lag_seconds=MUCH / 3,
        in_flight=MUCH,
        retrying=MUCH,
        waiting=MUCH,
        parked=MUCH,
        unrouted=MUCH,
        stopped_lanes=MUCH,
        stopped_limit="max_unrouted",
        stopped_cause='"' * MAX_CAUSE_BYTES,
    ),
]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_pipe_takes_each_word_whole_or_not_at_all(word: ProcessReport | ProcessMeasurement) -> None:
    assert len(msgspec.json.encode(word)) < select.PIPE_BUF


async def test_each_word_is_heard_as_it_was_said() -> None:
    reader = ReportPipeReader()
    writer = ReportPipeWriter(reader.inherited)
    for word in WORDS:
        writer.write(word)
    reader.close_inherited()
    heard: list[ProcessReport | ProcessMeasurement] = []
    async with asyncio.timeout(40):
        await reader.read(heard.append)
    assert heard == WORDS


async def test_who_is_not_listened_to_says_no_more_than_fits() -> None:
    reader = ReportPipeReader()
    writer = ReportPipeWriter(reader.inherited)
    for _ in range(100):
        writer.write(WORDS[2])
    reader.close_inherited()
    heard: list[ProcessReport | ProcessMeasurement] = []
    async with asyncio.timeout(40):
        await reader.read(heard.append)
    assert 10 <= len(heard) < 100
    assert all(word == WORDS[2] for word in heard)
