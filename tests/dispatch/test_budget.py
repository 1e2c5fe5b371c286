"""What a consumer may have open: capacities, and when it gets more."""

import pytest

from dispatch.examples import Desk, Example, member, ready, route
from milepost.dispatch.delivery import STATUS_OPEN, LaneDelivery
from milepost.dispatch.routing.route import Route


@pytest.mark.parametrize("wrong", [{"capacity": -1}, {"capacity_bytes": -1}])
def test_a_negative_capacity_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        route(**wrong)  # type: ignore[arg-type]


def test_capacities_are_1000_messages_and_32_mebibytes_by_default() -> None:
    assert route().capacity == 1000
    assert route().capacity_bytes == 33_554_432


def test_a_member_is_full_at_its_capacity() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=3)])
    desk.push(*(ready(position) for position in range(1, 9)))
    assert len(desk.hand_out()) == 3
    assert not desk.group().has_room


def test_one_message_may_overshoot_the_bytes() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity_bytes=100)])
    desk.push(ready(1, size=99), ready(2, size=5000), ready(3, size=1))
    assert len(desk.hand_out()) == 2
    assert member(desk, "x").bytes == 5099


@pytest.mark.parametrize("pause", [{"capacity": 0}, {"capacity_bytes": 0}])
def test_a_capacity_of_0_pauses(pause: dict[str, int]) -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=2)])
    desk.push(*(ready(position, size=0) for position in range(1, 5)))
    desk.hand_out(1)
    desk.routes.configure("x", [route(**pause)])  # type: ignore[arg-type]
    desk.close(1)
    assert desk.hand_out() == []
    desk.routes.configure("x", [route(capacity=1)])
    assert desk.hand_out() == [(2, "x")]


@pytest.mark.parametrize(("capacity", "low"), [(10, 8), (9, 7), (4, 3), (2, 1), (1, 0)])
def test_after_being_full_more_comes_at_80_percent(capacity: int, low: int) -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=capacity)])
    desk.push(*(ready(position) for position in range(1, 30)))
    desk.hand_out()
    for position in range(1, capacity - low):
        desk.close(position)
        assert desk.hand_out() == []
    desk.close(capacity - low)
    assert len(desk.hand_out()) == capacity - low


def test_after_being_full_more_comes_at_80_percent_of_the_bytes() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity_bytes=1000)])
    desk.push(*(ready(position, size=90) for position in range(1, 30)))
    assert len(desk.hand_out()) == 12
    desk.close(1, 2, 3)
    assert desk.hand_out() == []
    desk.close(4)
    assert len(desk.hand_out()) == 4


def test_room_needs_both_messages_and_bytes_to_be_low() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=10, capacity_bytes=1000)])
    desk.push(ready(1, size=900), *(ready(position, size=1) for position in range(2, 30)))
    assert len(desk.hand_out()) == 10
    desk.close(2, 3, 4, 5)
    assert desk.hand_out() == []
    desk.close(1)
    assert len(desk.hand_out()) == 5


def test_before_being_full_each_free_place_is_used() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=10)])
    desk.push(*(ready(position) for position in range(1, 10)))
    desk.hand_out()
    desk.push(ready(10))
    assert desk.hand_out() == [(10, "x")]


@pytest.mark.parametrize(
    "after", [route("a >= 0", capacity=2), route("a == 0", capacity=2), route(None, 7, capacity=2)]
)
def test_a_reconfigured_route_keeps_its_budget(after: Route) -> None:
    desk = Desk()
    desk.routes.join("x", [route("a >= 0", capacity=1)])
    desk.push(ready(1, a=0))
    desk.hand_out()
    desk.routes.configure("x", [after])
    desk.push(ready(2, a=0), ready(3, a=0))
    assert desk.hand_out() == [(2, "x")]
    assert (member(desk, "x").messages, member(desk, "x").bytes) == (2, 200)
    desk.close(1)
    assert desk.hand_out() == [(3, "x")]


def test_a_lower_capacity_makes_full_and_a_higher_one_makes_room() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=4)])
    desk.push(*(ready(position) for position in range(1, 30)))
    desk.hand_out(3)
    desk.routes.configure("x", [route(capacity=3)])
    assert desk.hand_out() == []
    desk.routes.configure("x", [route(capacity=5)])
    assert len(desk.hand_out()) == 2


def test_a_raised_capacity_gives_room_at_once() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=10)])
    desk.push(*(ready(position) for position in range(1, 30)))
    desk.hand_out()
    desk.routes.configure("x", [route(capacity=12)])
    assert [position for position, _ in desk.hand_out()] == [11, 12]


def test_a_route_that_comes_back_finds_its_open_messages_in_its_budget() -> None:
    desk = Desk()
    desk.routes.join("x", [route(capacity=2)])
    desk.push(ready(1), ready(2), ready(3))
    desk.hand_out()
    desk.routes.configure("x", [])
    desk.close(1)
    desk.routes.configure("x", [])
    desk.routes.configure("x", [route(capacity=2)])
    assert member(desk, "x").messages == 1
    desk.push(*desk.routes.clear())
    assert desk.hand_out() == [(3, "x")]


def test_a_removed_route_is_forgotten_when_nothing_of_it_is_open() -> None:
    desk = Desk()
    consumer = desk.routes.join("x", [route(name="r1"), route(name="r2")])
    desk.push(ready(1))
    desk.hand_out()
    desk.routes.configure("x", [])
    assert list(consumer.former) == ["r1"]
    desk.close(1)
    desk.routes.configure("x", [])
    assert not consumer.former
    assert not consumer.deliveries


def test_deliveries_are_kept_in_the_order_of_hand_out_and_closed_once() -> None:
    desk = Desk()
    consumer = desk.routes.join("x", [route()])
    desk.push(ready(2), ready(1))
    desk.hand_out()
    assert [delivery.entry.position for delivery in consumer.deliveries] == [1, 2]
    first = desk.open[0]
    desk.close(1)
    with pytest.raises(KeyError):
        desk.routes.closed(first)
    assert member(desk, "x").messages == 1


def test_a_delivery_without_a_member_is_nobodys_charge() -> None:
    desk = Desk()
    desk.routes.join("x", [route()])
    entry = ready(1)
    delivery: LaneDelivery[Example] = LaneDelivery(entry.message, 1, entry)
    desk.routes.opened(delivery)
    desk.routes.closed(delivery)
    assert member(desk, "x").messages == 0


def test_a_delivery_that_opens_after_its_route_is_gone_is_still_its_consumers() -> None:
    desk = Desk()
    consumer = desk.routes.join("x", [route()])
    desk.push(ready(1))
    taken = desk.routes.take()
    assert taken is not None
    entry, got = taken
    entry.status = STATUS_OPEN
    desk.routes.configure("x", [])
    delivery = LaneDelivery(entry.message, 1, entry, got)
    desk.routes.opened(delivery)
    assert list(consumer.deliveries) == [delivery]
    desk.routes.closed(delivery)
    assert not consumer.deliveries
