"""Pulling against a plain model, step by step; and many at once, with what always holds."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from engine.pull_model import ACTIVE, Model
from engine.pulling import Clock, Jobs
from milepost import Milepost, Retry
from milepost.engine.pull.claims import PulledDelivery
from support import MakeMilepost

STEP = 500.0
"""Seconds that the clock moves by: what the test itself takes does not matter beside it."""
STEPS = 70
MORE = pytest.mark.shard("simulation")


class Walk:
    """Does the same at random to a subscription and to its model, and compares."""

    def __init__(self, seed: int, jobs: Jobs, clock: Clock, model: Model) -> None:
        self.random = random.Random(seed)
        self.jobs = jobs
        self.clock = clock
        self.model = model
        self.held: list[PulledDelivery] = []

    async def run(self) -> None:
        steps = [self.append, self.pull, self.pull, self.settle, self.settle, self.pass_time, self.decide]
        for _ in range(STEPS):
            await self.random.choice(steps)()
            await self.compare()

    async def append(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            key = f"job-{self.random.randint(1, 4)}"
            [position] = await self.jobs.append(stream=key)
            self.model.append(position, key)

    async def pull(self) -> None:
        limit = self.random.choice([1, 2, 5, 1000])
        timeout = self.random.choice([2 * STEP - 100, 5 * STEP - 100])
        tasks = await self.jobs.pull(limit=limit, timeout=timeout)
        self.model.expire()
        claimable = self.model.claimable()
        assert len(tasks) == min(limit, len(claimable))
        for task in tasks:
            assert task.position in claimable
            assert task.attempt == self.model.claim(task.position, task.token, timeout)
        self.held += tasks

    async def settle(self) -> None:
        chosen = self.random.sample(self.held, min(len(self.held), self.random.randint(0, 6)))
        outcomes: dict[str, list[PulledDelivery]] = defaultdict(list)
        for task in chosen:
            outcomes[self.random.choice(["ack", "ack", "retry", "park", "skip", "extend"])].append(task)
        timeout = 3 * STEP - 100
        result = await self.jobs.settle(**outcomes, timeout=timeout)
        for outcome, tasks in outcomes.items():
            for task in tasks:
                held = self.model.settle(task.position, task.token, outcome, timeout)
                assert (task in result.moved, task in result.refused) == (held, not held)

    async def pass_time(self) -> None:
        seconds = STEP * self.random.randint(1, 4)
        await self.clock.advance(seconds)
        self.model.now += seconds

    async def decide(self) -> None:
        known = list((await self.jobs.states()).keys())
        positions = sorted(self.random.sample(known, min(len(known), self.random.randint(0, 3))))
        decision = self.random.choice(["retry", "skip"])
        decided = await getattr(self.jobs.managed, decision)(positions)
        for position in positions:
            assert getattr(self.model, decision)(position) == (position not in decided.refused)

    async def compare(self) -> None:
        rows = {row.position: row for row in await self.jobs.rows()}
        expected = self.model.rows
        for position, row in rows.items():
            model = expected[position]
            assert (row.state, row.attempts, row.total) == (model.state, model.attempts, model.total), position
        for position, model in expected.items():
            # What nobody has looked at yet is no row.
            assert position in rows or (model.state == "waiting" and position > max(rows, default=0)), position
        heads = {key: row.position for key, row in self.model.heads().items() if row.position in rows}
        assert {key: at for key, at in (await self.jobs.heads()).items() if key is not None} == heads


@pytest.mark.shard("simulation", fast=["0"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=MORE) for seed in range(2, 12))])
async def test_it_does_what_the_model_does(mp: Milepost, seed: int) -> None:
    chance = random.Random(seed)
    model = Model(
        ordered=chance.random() < 0.7,
        on_park=chance.choice(["block", "continue"]),
        attempts=chance.choice([1, 2, 4]),
        delay=STEP - 100,
        factor=2,
    )
    jobs = await Jobs.create(
        mp,
        ordered_by="stream" if model.ordered else None,
        on_park=model.on_park,
        retry=Retry(attempts=model.attempts, delay=model.delay, factor=2, max_delay=1e6, jitter=0),
        stall_after=100_000,
    )
    await Walk(seed, jobs, Clock(mp), model).run()


class Crowd:
    """Many who pull at once, and what they see of each other."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.out: dict[str, int] = {}
        """By key, which position somebody has."""
        self.done: dict[str, list[int]] = defaultdict(list)
        self.acks = 0

    def take(self, task: PulledDelivery) -> None:
        stream = task.message.stream
        assert stream not in self.out, f"{task} while {self.out[stream]} is out"
        assert task.position > max(self.done[stream], default=0), f"{task} comes after a later one"
        self.out[stream] = task.position

    def end(self, task: PulledDelivery, *, acked: bool) -> None:
        del self.out[task.message.stream]
        if acked:
            self.done[task.message.stream].append(task.position)
            self.acks += 1

    @property
    def is_over(self) -> bool:
        return self.acks == self.total


async def _puller(crowd: Crowd, mp: Milepost, seed: int) -> None:
    chance = random.Random(seed)
    while not crowd.is_over:
        tasks = await mp.pull("emails", limit=chance.choice([1, 3, 10, 40]), wait=chance.choice([0, 0.05]))
        for task in tasks:
            crowd.take(task)
        await asyncio.sleep(chance.choice([0, 0, 0.002]))
        acked = [task for task in tasks if chance.random() < 0.8]
        failed = [task for task in tasks if task not in acked]
        # What others see may be that it is settled: it is out no longer.
        for task in tasks:
            crowd.end(task, acked=task in acked)
        result = await mp.settle(ack=acked, retry=failed, after=0)
        assert result.refused == ()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=MORE) for seed in (1, 2))])
async def test_many_at_once_keep_the_order_and_lose_nothing(make_mp: MakeMilepost, seed: int) -> None:
    keys, each = (15, 40) if seed else (8, 15)
    async with make_mp() as mp:
        jobs = await Jobs.create(mp, ordered_by="stream", retry=Retry(attempts=1000), stall_after=100_000)
        crowd = Crowd(keys * each)
        others: list[Any] = [make_mp() for _ in range(3)]
        for other in others:
            await other.__aenter__()
        try:
            async with asyncio.timeout(80), asyncio.TaskGroup() as group:
                for number, other in enumerate([mp, *others, *others]):
                    group.create_task(_puller(crowd, other, seed * 100 + number))
                for number in range(each):
                    for key in range(keys):
                        await jobs.append(stream=f"job-{key}")
                    if number % 10 == 0:
                        await asyncio.sleep(0.01)
        finally:
            for other in others:
                await other.__aexit__(None, None, None)
        assert {stream: len(done) for stream, done in crowd.done.items()} == {
            f"job-{key}": each for key in range(keys)
        }
        assert await jobs.rows() == []
        assert (await jobs.managed.info()).waiting == 0


def test_the_model_is_what_it_says() -> None:
    model = Model(ordered=True, on_park="block", attempts=1, delay=1, factor=2)
    model.append(1, "a")
    model.append(2, "a")
    assert model.claimable() == {1}
    model.claim(1, "c", 10)
    assert model.claimable() == set()
    assert model.settle(1, "c", "park", 0)
    assert model.claimable() == set()
    model.on_park = "continue"
    assert model.claimable() == {2}
    assert set(ACTIVE) == {"waiting", "running", "retrying"}
