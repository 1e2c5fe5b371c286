"""Handlers that never end: the worker gives its lanes back and ends with status 1."""

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage
from milepost.engine.handlers.slots import Stuck
from support import qualified

PROGRAM = Path(__file__).with_name("stuck.py")
PATIENT = Path(__file__).with_name("waits.py")


@pytest.mark.shard("faults")
@pytest.mark.parametrize("kind", ["plain", "blocked", "insists"])
async def test_a_handler_that_never_ends_ends_the_process(
    mp: Milepost, database_url: str, schema: str, kind: str
) -> None:
    await mp.append("order-1", NewMessage("placed"))
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), database_url, schema, kind], stderr=subprocess.PIPE, text=True
    )
    try:
        _, said = await asyncio.to_thread(process.communicate, timeout=40)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, said
    owners = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
    assert list(owners) == [(0,)]


async def test_a_thread_that_never_ends_counts_as_an_attempt(mp: Milepost, database_url: str, schema: str) -> None:
    """Or the message would go from process to process and take each of them down."""
    await mp.append("order-1", NewMessage("placed"))
    arguments = [sys.executable, str(PROGRAM), database_url, schema, "plain"]
    process = await asyncio.to_thread(subprocess.run, arguments, timeout=40, check=False, capture_output=True)
    assert process.returncode == 1
    owners = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
    assert list(owners) == [(0,)]
    rows = await mp.log.database.execute(qualified("select state, attempts, reason from {}.deliveries", mp), {})
    assert list(rows) == [("retrying", 1, "TimedOut: timed out after 0.3 s")]


async def test_the_first_signal_waits_for_handlers_and_the_second_does_not(
    mp: Milepost, database_url: str, schema: str
) -> None:
    await mp.append("order-1", NewMessage("placed"))
    arguments = [sys.executable, str(PATIENT), database_url, schema]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
        process.send_signal(signal.SIGTERM)
        for _ in range(20):
            assert await asyncio.to_thread(process.stdout.readline) == "waits\n"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_handler_that_cleans_up_after_its_time_out_does_not_keep_the_worker_from_ending(
    mp: Milepost,
) -> None:
    """The end of the worker reaches it while it does so: that is not taken for its time-out once more."""
    cleaning = asyncio.Event()

    @mp.subscription("slow", category="order", timeout=0.05, lanes=1)
    async def handle(message: Message[Any]) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaning.set()
            await asyncio.sleep(3600)

    await mp.append("order-1", NewMessage("placed"))
    async with asyncio.timeout(40):
        # By then it may be late enough for that as well.
        with suppress(Stuck):
            async with mp.running(grace=0.5):
                await cleaning.wait()
