"""What a consumer has said, and what becomes of it: without a server."""

from types import SimpleNamespace
from typing import Any, cast

from milepost.client.delivery import Delivery
from milepost.client.frames import Because, Settled
from milepost.client.settlements import Settlement, Settlements


def delivery(number: int) -> Delivery:
    return cast(Delivery, SimpleNamespace(id=number))


def acks(settlements: Settlements, *numbers: int) -> list[dict[str, Any]]:
    """What is sent when these are done."""
    for number in numbers:
        settlements.add(Settlement(delivery(number), "ack"))
    return list(settlements.frames())


def test_an_answer_tells_of_each_whether_it_held() -> None:
    settlements = Settlements()
    assert acks(settlements, 1, 2, 3) == [{"type": "settle", "ref": 1, "ack": [1, 2, 3]}]
    answer = Settled(ref=1, moved=[1], refused=[Because(2, "timed out")])
    told = {each.delivery.id: why for each, why in settlements.answered(answer)}
    assert told == {1: None, 2: "timed out", 3: "is no longer known"}
    assert not settlements


def test_what_a_cut_left_unanswered_is_said_again_if_it_is_still_open() -> None:
    settlements = Settlements()
    acks(settlements, 1, 2)
    settlements.cut()
    settlements.resumed({2})
    assert list(settlements.frames()) == [{"type": "settle", "ref": 2, "ack": [2]}]
    assert [each.delivery.id for each in settlements.sure()] == [1]
