"""Clients that say what they have begun with: only that is an attempt when their time is over."""

import pytest

from engine.consuming.taking import orders
from milepost import Milepost, Retry
from milepost.server.websocket import hall
from server.websocket.conftest import Serving
from server.websocket.talking import Talk, consuming

AT_ONCE = Retry(delay=0, jitter=0)


async def attempts(talk: Talk, count: int) -> dict[int, int]:
    """Of the next deliveries, so many, by their numbers; other frames are passed over."""
    found: dict[int, int] = {}
    while len(found) < count:
        for each in (await talk.hear_of("deliveries"))["deliveries"]:
            found[each["message"]["data"]["n"]] = each["attempt"]
    return found


async def test_a_time_out_is_an_attempt_of_what_was_begun(mp: Milepost, server: Serving) -> None:
    await mp.manage("shipping").update(timeout=3, retry=AT_ONCE)
    await orders(mp, 4)
    async with consuming(server.address, begins=True) as talk:
        ids = [each["id"] for each in await talk.take(4)]
        await talk.say("begun", up_to=ids[0])
        # Whoever asks for more time has begun.
        await talk.say("extend", ref=1, deliveries=[ids[2]], seconds=3)
        await talk.expect("settled", ref=1)
        reasons: dict[int, str] = {}
        while len(reasons) < 4:
            reasons |= {each["id"]: each["reason"] for each in (await talk.hear_of("lost"))["deliveries"]}
    waited = "it waited too long, or behind others that timed out"
    assert [reasons[each] for each in ids] == ["timed out", waited, "timed out", waited]
    async with consuming(server.address) as other:
        found = await attempts(other, 4)
        assert (found[0] > 1, found[2] > 1, found[1], found[3]) == (True, True, 1, 1)


async def test_without_a_word_everything_is_begun(mp: Milepost, server: Serving) -> None:
    await mp.manage("shipping").update(timeout=1, retry=AT_ONCE)
    await orders(mp, 2)
    async with consuming(server.address) as talk:
        await talk.take(2)
        assert await attempts(talk, 2) == {0: 2, 1: 2}


async def test_a_lost_client_may_have_begun_with_anything(
    mp: Milepost, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that ends its process before that can say a word is an attempt each time."""
    monkeypatch.setattr(hall, "RESUME", 0.2)
    await mp.manage("shipping").update(retry=AT_ONCE)
    await orders(mp, 3)
    async with consuming(server.address, begins=True) as talk:
        taken = await talk.take(3)
        for up_to in (-5, taken[1]["id"], taken[0]["id"]):
            await talk.say("begun", up_to=up_to)
        await talk.say("ping", ref=1)
        await talk.expect("pong", ref=1)
        talk.vanish()
    async with consuming(server.address) as other:
        assert await attempts(other, 3) == {0: 2, 1: 2, 2: 2}
