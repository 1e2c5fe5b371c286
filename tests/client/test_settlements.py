"""What a consumer has said, and what becomes of it: without a server."""

from types import SimpleNamespace
from typing import Any, cast

from milepost.client.delivery import ClientDelivery, UnconfirmedSettlement, UnconfirmedSettlements
from milepost.wire.frames import RefusedDelivery, SettledFrame


def delivery(number: int) -> ClientDelivery:
    return cast(ClientDelivery, SimpleNamespace(id=number))


def acks(settlements: UnconfirmedSettlements, *numbers: int) -> list[dict[str, Any]]:
    """What is sent when these are done."""
    for number in numbers:
        settlements.add(UnconfirmedSettlement(delivery(number), "ack"))
    return list(settlements.frames())


def test_an_answer_tells_of_each_whether_it_held() -> None:
    settlements = UnconfirmedSettlements()
    assert acks(settlements, 1, 2, 3) == [{"type": "settle", "ref": 1, "ack": [1, 2, 3]}]
    answer = SettledFrame(ref=1, moved=[1], refused=[RefusedDelivery(2, "timed out")])
    told = {each.delivery.id: why for each, why in settlements.answered(answer)}
    assert told == {1: None, 2: "timed out", 3: "is no longer known"}
    assert not settlements


def test_what_a_cut_left_unanswered_is_said_again_if_it_is_still_open() -> None:
    settlements = UnconfirmedSettlements()
    acks(settlements, 1, 2)
    settlements.connection_lost()
    settlements.resumed({2})
    assert list(settlements.frames()) == [{"type": "settle", "ref": 2, "ack": [2]}]
    assert [each.delivery.id for each in settlements.take_confirmed()] == [1]
