"""What processes say to the one that started them."""

import asyncio
import select

import msgspec
import pytest

from milepost.cli.metrics import Measured
from milepost.cli.pipe import Ear, Mouth
from milepost.cli.reports import Report
from milepost.contrib.outlook import LONGEST_CAUSE, LogOutlook, SubscriptionOutlook
from milepost.engine.figures import BOUNDS, Figures

MUCH = 10**15
LONGEST = "\x01" * 512
"""A name whose characters are written with six each."""

WORDS: list[Report | Measured] = [
    Report(None),
    Report("does not work on its subscriptions"),
    Figures(
        LONGEST,
        handled=MUCH,
        failed=MUCH,
        retried=MUCH,
        parked=MUCH,
        skipped=MUCH,
        lost=MUCH,
        lanes=MUCH,
        seconds=MUCH / 3,
        times=[MUCH] * (len(BOUNDS) + 1),
    ),
    LogOutlook(
        horizon=MUCH, head=MUCH, held_for=1 / 3, held_by="x" * 200, held_lasting="x" * 220, application="\x01" * 63
    ),
    SubscriptionOutlook(
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
        stopped_cause='"' * LONGEST_CAUSE,
    ),
]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_pipe_takes_each_word_whole_or_not_at_all(word: Report | Measured) -> None:
    assert len(msgspec.json.encode(word)) < select.PIPE_BUF


async def test_each_word_is_heard_as_it_was_said() -> None:
    ear = Ear()
    mouth = Mouth(ear.other)
    for word in WORDS:
        mouth.tell(word)
    ear.begun()
    heard: list[Report | Measured] = []
    async with asyncio.timeout(40):
        await ear.follow(heard.append)
    assert heard == WORDS


async def test_who_is_not_listened_to_says_no_more_than_fits() -> None:
    ear = Ear()
    mouth = Mouth(ear.other)
    for _ in range(100):
        mouth.tell(WORDS[2])
    ear.begun()
    heard: list[Report | Measured] = []
    async with asyncio.timeout(40):
        await ear.follow(heard.append)
    assert 10 <= len(heard) < 100
    assert all(word == WORDS[2] for word in heard)
