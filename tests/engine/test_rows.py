"""Rows name positions: the messages there are read later, and only in the same life of the server."""

from collections.abc import AsyncIterator

import pytest

from lossy import Lossy, lossy, until_available
from milepost import Milepost, NewMessage, Unavailable
from milepost.dispatch import Cursor, DeliveryRow, ExchangeAnswer, HeldKey, LaneState, LoadedRow, State
from milepost.engine.lanes.message_loader import MessageLoader
from milepost.progress.protocol import RowOnly


@pytest.fixture
async def server(database_url: str, schema: str) -> AsyncIterator[Lossy]:
    async with lossy(database_url, schema) as server:
        yield server


async def test_they_get_no_messages_of_another_life(mp: Milepost, server: Lossy) -> None:
    rows = MessageLoader(mp.log)
    await mp.log.horizon.sample()
    life = mp.log.horizon.life
    await server.flush()
    lost = await mp.append("order-1", NewMessage("lost"))
    row = DeliveryRow(position=lost.position, key="order-1", state=State.RETRYING, since=0.0)
    loaded = LoadedRow(row, RowOnly(row.position))
    answers: list[ExchangeAnswer[RowOnly]] = [
        ExchangeAnswer(due=[loaded]),
        ExchangeAnswer(unrouted=[loaded]),
        ExchangeAnswer(held={"order-1": HeldKey([loaded], more=False)}),
    ]
    state: LaneState[RowOnly] = LaneState(cursor=Cursor(row.position), now=0.0, running=[loaded])
    assert [each.message.type for each in (await rows.answer(answers[0], log_life=life)).due] == ["lost"]
    await server.crash()
    await until_available(mp)
    assert (await mp.append("order-2", NewMessage("new"))).position == lost.position
    for answer in answers:
        with pytest.raises(Unavailable):
            await rows.answer(answer, log_life=life)
    with pytest.raises(Unavailable):
        await rows.state(state, unclean=False, log_life=life)
    assert (await rows.answer(ExchangeAnswer(), log_life=life)).due == []
