"""Exactly once, whatever is killed when."""

import asyncio
from pathlib import Path

import pytest

from engine.faults.crew import crew
from engine.faults.killing import kill_for
from engine.vanished import expire
from milepost import Milepost, NewMessage
from patience import within
from support import qualified


@pytest.mark.shard("faults")
@pytest.mark.timeout(100)
async def test_a_killed_worker_s_messages_take_effect_once(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    await kill_for(6, mp, database_url, schema, tmp_path)


async def test_a_transaction_that_a_kill_interrupts_has_no_effect(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path
) -> None:
    """It has written, and not committed; another worker handles the message, once."""
    await mp.log.database.execute(qualified("create table {}.totals as select 0 as n", mp), {})
    options = {"lanes": 1, "lease": 60.0}
    (tmp_path / "other").mkdir()
    with (
        crew(database_url, schema, tmp_path, totals={**options, "waits": True}) as killed,
        crew(database_url, schema, tmp_path / "other", totals={**options, "waits": False}) as others,
    ):
        await mp.append("order-1", NewMessage("placed"))
        worker = killed.start()
        await until_empty(mp, "select n from {}.totals for update skip locked")
        worker.kill()
        worker.wait()
        await expire(mp, worker.pid)
        others.start()
        await until_empty(mp, "select n from {}.totals where n = 0")
        await mp.append("order-1", NewMessage("placed"))
        await until_empty(mp, "select n from {}.totals where n < 2")
    rows = await mp.log.database.execute(qualified("select n from {}.totals", mp), {})
    assert list(rows) == [(2,)]


async def until_empty(mp: Milepost, text: str) -> None:
    """Waits until a query finds nothing."""
    async with within(60, lambda: mp.log.database.execute(qualified(text, mp), {})):
        while await mp.log.database.execute(qualified(text, mp), {}):
            await asyncio.sleep(0.02)
