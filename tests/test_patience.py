"""A test that waits in vain says for what."""

import asyncio

import pytest

from patience import looked_at, shortened, until, within


async def test_what_was_found_is_told() -> None:
    seen = [1, 2]
    with pytest.raises(AssertionError, match=r"not within 0\.01 s; found seen = \[1, 2\]$"):
        await until(lambda: len(seen) == 3, 0.01)


async def test_what_is_asked_for_is_told() -> None:
    async def found() -> str:
        return "two rows"

    with pytest.raises(AssertionError, match="found two rows$"):
        async with within(0.01, found):
            await asyncio.Event().wait()


async def test_a_question_that_fails_does_not_hide_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match="found nothing out: ZeroDivisionError"):
        async with within(0.01, lambda: 1 / 0):
            await asyncio.Event().wait()


async def test_a_time_out_of_the_block_s_own_is_not_taken_for_it() -> None:
    with pytest.raises(TimeoutError):
        async with within(20, lambda: "nothing"):
            raise TimeoutError


def test_what_is_long_is_cut() -> None:
    seen = list(range(10_000))
    assert len(looked_at(lambda: seen)) < 1100
    assert shortened("short") == "short"
