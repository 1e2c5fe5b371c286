"""How long a pause takes until it holds, while four workers drain a backlog."""

import asyncio
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.contest import Scores
from benchmarks.logs import Log, fresh_log
from benchmarks.processes import Processes
from benchmarks.results import Result
from milepost import Message, Milepost

WORKERS = 4
HANDLING = 0.001
"""Seconds that a handler takes."""
GOAL = 0.5
"""Seconds."""


def measure(bench: Bench) -> list[Result]:
    """Pauses and resumes, again and again."""
    work = f"pause: until it holds, {WORKERS} workers"
    scores = Scores(unit="s", fewer_is_better=True)
    rounds = bench.sizes.rounds * 2
    with (
        bench.steps(work, rounds) as step,
        fresh_log(bench.url, "pause", streams=bench.sizes.drain_streams, versions=20) as log,
    ):
        group = uuid4().hex
        with Processes(WORKERS, _work, log, group):
            asyncio.run(_pause(log, group, rounds, scores, step))
    return [scores.result(work, "milepost", below=GOAL)]


async def _pause(log: Log, group: str, rounds: int, scores: Scores, step: Any) -> None:
    async with Milepost(log.url, schema=log.schema, group=group) as mp:
        managed = mp.manage("drain")
        for _ in range(rounds):
            while len((await managed.info()).owners) < WORKERS:  # noqa: ASYNC110 - the database knows it
                await asyncio.sleep(0.05)
            begun = perf_counter()
            await managed.pause()
            scores.add("milepost", perf_counter() - begun)
            await managed.resume()
            step()


async def _work(pipe: Connection, number: int, log: Log, group: str) -> None:
    mp = Milepost(log.url, schema=log.schema, group=group)

    @mp.subscription("drain")
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(HANDLING)

    async with mp.running():
        pipe.send("ready")
        while await asyncio.to_thread(pipe.recv) is not None:
            pass
