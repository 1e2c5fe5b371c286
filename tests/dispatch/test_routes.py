"""Who gets a message: filters, priorities and capacities of all consumers."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.examples import Desk, Example, ready, route
from milepost.dispatch.delivery import STATUS_ASIDE, STATUS_READY, LaneEntry
from milepost.dispatch.routing.route import Route
from milepost.dispatch.routing.routes import STRATEGIES
from milepost.names import MAX_POSITION_NUMBER


def names(desk: Desk, **properties: Any) -> list[str]:
    return [member.consumer.name for member in desk.group(**properties).members]


def test_an_unknown_strategy_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="round_robin, dispatch_to_single, pinned, pinned_by_correlation"):
        Desk("random")


@pytest.mark.parametrize("strategy", ["pinned", "pinned_by_correlation"])
def test_a_pinned_strategy_needs_to_know_buckets(strategy: str) -> None:
    with pytest.raises(ValueError, match="bucket_of"):
        Desk(strategy)


def test_the_highest_priority_that_matches_takes_a_message() -> None:
    desk = Desk()
    desk.routes.join("low", [route("a >= 0", priority=5)])
    desk.routes.join("high", [route("a == 0", priority=10)])
    desk.routes.join("rest", [route(priority=-1)])
    assert names(desk, a=0) == ["high"]
    assert names(desk, a=1) == ["low"]
    assert names(desk, a=-1) == ["rest"]


def test_without_a_match_there_is_no_group() -> None:
    desk = Desk()
    desk.routes.join("one", [route("a == 0")])
    assert desk.routes.match(Example(1, a=1)) is None


def test_among_equal_priorities_the_consumer_who_came_first_is_first() -> None:
    desk = Desk()
    desk.routes.join("first", [route("a >= 0")])
    desk.routes.join("second", [route("a == 0")])
    assert names(desk, a=0) == ["first"]


def test_within_a_consumer_the_order_of_its_routes_decides() -> None:
    desk = Desk()
    one, two = route("a == 0", name="one"), route("a >= 0", name="two")
    desk.routes.join("c", [one, two])
    assert desk.group(a=0).filter == one.filter
    desk.routes.configure("c", [two, one])
    assert desk.group(a=0).filter == two.filter


@pytest.mark.parametrize("other", [route("a == 5"), route("a >= 0", priority=1), route("a == 0", priority=-1)])
def test_a_consumer_that_changes_and_changes_back_keeps_its_place(other: Route) -> None:
    desk = Desk()
    desk.routes.join("first", [route("a >= 0")])
    desk.routes.join("second", [route("a == 0")])
    desk.routes.configure("first", [other])
    desk.routes.configure("first", [route("a >= 0")])
    assert names(desk, a=0) == ["first"]


def test_a_member_that_comes_back_to_its_group_keeps_its_place_there() -> None:
    desk = Desk()
    for name in ("first", "second"):
        desk.routes.join(name, [route()])
    desk.routes.configure("first", [route("a == 1")])
    desk.routes.configure("first", [route()])
    assert names(desk) == ["first", "second"]
    desk.push(ready(1), ready(2))
    assert desk.hand_out() == [(1, "first"), (2, "second")]


def test_a_group_takes_the_rank_of_its_next_member_when_the_first_goes() -> None:
    desk = Desk()
    desk.routes.join("first", [route("a >= 0")])
    desk.routes.join("second", [route("a == 0")])
    desk.routes.join("third", [route("a >= 0")])
    assert names(desk, a=0) == ["first", "third"]
    desk.routes.leave("first")
    assert names(desk, a=0) == ["second"]


def test_equal_filters_and_priorities_are_one_route() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0 && b == 1", capacity=2)])
    desk.routes.join("y", [route("(a == 0)  and (b==1)", capacity=3)])
    desk.push(*(ready(position, a=0, b=1) for position in range(1, 8)))
    assert desk.hand_out() == [(1, "x"), (2, "y"), (3, "x"), (4, "y"), (5, "y")]
    assert len(desk.routes.groups) == 1


def test_equal_filters_of_different_priority_are_not() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0", priority=1), route("a == 0", priority=2, name="again")])
    assert len(desk.routes.groups) == 2


def test_a_label_tells_filter_and_priority() -> None:
    desk = Desk()
    asked = [route(), route(priority=1), route("a == 1"), route("a == 1", priority=1), route("b")]
    desk.routes.join("x", [Route(r.where, name=str(n), priority=r.priority) for n, r in enumerate(asked)])
    labels = [group.label for group in desk.routes.groups]
    assert labels == ["0: *", "1: *", "0: a == 1", "1: a == 1", "0: b"]


def test_no_spill_over_to_a_lower_priority_when_the_higher_is_full() -> None:
    desk = Desk()
    desk.routes.join("high", [route("a == 0", priority=1, capacity=1)])
    desk.routes.join("low", [route("a == 0")])
    desk.push(ready(1, a=0), ready(2, a=0))
    assert desk.hand_out() == [(1, "high")]
    desk.close(1)
    assert desk.hand_out() == [(2, "high")]


def test_a_full_group_does_not_hold_up_another() -> None:
    desk = Desk()
    desk.routes.join("high", [route("a == 0", priority=1, capacity=1)])
    desk.routes.join("low", [route()])
    desk.push(ready(1, a=0), ready(2, a=0), ready(3, a=1), ready(4, a=1))
    assert sorted(desk.hand_out()) == [(1, "high"), (3, "low"), (4, "low")]


def test_groups_take_turns() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0")])
    desk.routes.join("y", [route("a == 1")])
    desk.push(*(ready(position, a=0) for position in (1, 2)), *(ready(position, a=1) for position in (3, 4)))
    assert desk.hand_out() == [(1, "x"), (3, "y"), (2, "x"), (4, "y")]


def test_a_group_hands_out_in_order_of_position() -> None:
    desk = Desk()
    desk.routes.join("x", [route()])
    desk.push(ready(5), ready(9), ready(2), ready(7))
    assert [position for position, _ in desk.hand_out()] == [2, 5, 7, 9]


def test_two_consumers_cannot_have_one_name() -> None:
    desk = Desk()
    consumer = desk.routes.join("x", [])
    with pytest.raises(ValueError, match="a consumer 'x' already"):
        desk.routes.join("x", [route()])
    assert desk.routes.consumers == {"x": consumer}
    assert not desk.routes


def test_two_routes_of_a_consumer_cannot_have_one_name() -> None:
    desk = Desk()
    twice = [route("a == 0"), route("a == 1")]
    with pytest.raises(ValueError, match="2 routes are called 'r'"):
        desk.routes.join("x", twice)
    assert not desk.routes.consumers
    desk.routes.join("x", [route("a == 2")])
    with pytest.raises(ValueError, match="2 routes are called 'r'"):
        desk.routes.configure("x", twice)
    assert names(desk, a=2) == ["x"]


def test_a_consumer_leaves_with_what_it_has_open() -> None:
    desk = Desk()
    desk.routes.join("x", [route()])
    desk.push(ready(1), ready(2))
    desk.hand_out()
    consumer = desk.routes.leave("x")
    assert [delivery.entry.position for delivery in consumer.deliveries] == [1, 2]
    desk.close(2)
    desk.close(1)
    assert not consumer.deliveries
    assert not desk.routes
    assert desk.routes.match(Example(3)) is None


def test_the_version_grows_when_a_message_may_match_another_group() -> None:
    desk = Desk()
    seen = [desk.routes.version]

    def grown() -> bool:
        seen.append(desk.routes.version)
        return seen[-1] > seen[-2]

    desk.routes.join("x", [route("a == 0")])
    assert grown()
    desk.routes.configure("x", [route("a == 1")])
    assert grown()
    desk.routes.configure("x", [route("a == 1", priority=1)])
    assert grown()
    desk.routes.join("y", [route("b == 1", priority=1), route("a == 1", priority=1, name="other")])
    assert grown()
    desk.routes.configure("y", [route("a == 1", priority=1, name="other"), route("b == 1", priority=1)])
    assert grown()
    desk.routes.leave("x")
    assert grown()
    desk.routes.leave("y")
    assert grown()


def test_the_version_stays_when_only_capacities_change_or_a_group_gets_another_member() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0")])
    version = desk.routes.version
    desk.routes.configure("x", [route("a == 0", capacity=0)])
    desk.routes.configure("x", [route("(a) == 0", capacity=7)])
    desk.routes.join("y", [route("a == 0")])
    desk.routes.leave("y")
    desk.routes.join("z", [])
    assert desk.routes.version == version


def test_routes_that_change_places_leave_the_groups_as_they_are() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0", name="one"), route("a == 1", name="two")])
    groups = list(desk.routes.groups)
    desk.push(ready(1, a=0), ready(2, a=1))
    desk.routes.configure("x", [route("a == 1", name="one"), route("a == 0", name="two")])
    assert list(desk.routes.groups) == groups
    assert len(desk.hand_out()) == 2
    assert desk.used_routes() == ["two", "one"]


def test_what_is_above_the_known_is_not_taken_yet() -> None:
    desk = Desk()
    desk.routes.join("x", [route()])
    group = desk.group()
    assert group.known_to == MAX_POSITION_NUMBER
    group.known_to = 2
    desk.push(ready(1), ready(2), ready(3))
    assert desk.hand_out() == [(1, "x"), (2, "x")]
    assert desk.routes.idle()
    group.known_to = MAX_POSITION_NUMBER
    assert not desk.routes.idle()
    assert desk.hand_out() == [(3, "x")]


def test_clear_takes_out_all_in_order_of_position() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0")])
    desk.routes.join("y", [route("a == 1", capacity=0)])
    entries = [ready(position, a=position % 2) for position in (4, 1, 3, 2)]
    desk.push(*entries)
    assert [entry.position for entry in desk.routes.clear()] == [1, 2, 3, 4]
    assert desk.routes.clear() == []
    assert desk.hand_out() == []


def test_clear_finds_the_entries_of_groups_that_are_gone() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0")])
    desk.routes.join("y", [route("a >= 0", priority=-1)])
    desk.push(ready(1, a=0), ready(2, a=0))
    desk.routes.leave("x")
    assert desk.hand_out() == []
    desk.push(*desk.routes.clear())
    assert desk.hand_out() == [(1, "y"), (2, "y")]


def test_a_withdrawn_entry_is_passed_over_and_comes_once_when_it_is_back() -> None:
    desk = Desk()
    desk.routes.join("x", [route()])
    entries = [ready(position) for position in (1, 2, 3)]
    desk.push(*entries)
    entries[1].status = STATUS_ASIDE
    assert desk.hand_out(1) == [(1, "x")]
    entries[1].status = STATUS_READY
    desk.push(entries[1])
    assert [entry.position for entry in desk.group().clear()] == [2, 3]
    desk.push(*entries[1:], entries[1])
    assert desk.hand_out() == [(2, "x"), (3, "x")]


def test_clear_finds_an_entry_once_that_was_withdrawn_from_one_group_and_came_back_to_another() -> None:
    desk = Desk()
    desk.routes.join("x", [route()])
    entry = ready(1)
    desk.push(entry)
    entry.status = STATUS_ASIDE
    desk.routes.join("y", [route(priority=1)])
    desk.push(entry)
    assert desk.routes.clear() == [entry]


def test_idle_is_a_group_with_room_and_nothing_to_take() -> None:
    desk = Desk()
    assert not desk.routes.idle()
    desk.routes.join("x", [route("a == 0", capacity=1)])
    assert desk.routes.idle()
    entry = ready(1, a=0)
    desk.push(entry)
    assert not desk.routes.idle()
    entry.status = STATUS_ASIDE
    assert desk.routes.idle()
    desk.push(entry)
    desk.hand_out()
    assert not desk.routes.idle()
    desk.routes.join("y", [route("a == 1", capacity=1)])
    assert desk.routes.idle()
    desk.routes.leave("y")
    assert not desk.routes.idle()
    desk.close(1)
    assert desk.routes.idle()


def test_crowded_are_groups_with_entries_and_no_room() -> None:
    desk = Desk()
    desk.routes.join("x", [route("a == 0", capacity=1)])
    desk.routes.join("y", [route("a == 1")])
    group = desk.group(a=0)
    desk.push(ready(1, a=0), ready(2, a=1))
    assert desk.routes.crowded() == []
    desk.hand_out()
    assert desk.routes.crowded() == []
    waiting = ready(3, a=0)
    desk.push(waiting)
    assert desk.routes.crowded() == [group]
    waiting.status = STATUS_ASIDE
    assert desk.routes.crowded() == []
    desk.push(waiting)
    desk.routes.join("z", [route("a == 0")])
    assert desk.routes.crowded() == []


def test_routes_are_true_when_there_is_any() -> None:
    desk = Desk()
    desk.routes.join("x", [])
    assert not desk.routes
    desk.routes.configure("x", [route()])
    assert desk.routes


TEXTS = [None, "a == 0", "a == 1", "a >= 0", "b == 0", "a == 0 && b == 0", "b == 0 and a = 0", "a == 0 || b == 1"]
some_routes = st.lists(
    st.tuples(st.sampled_from(TEXTS), st.integers(-1, 1), st.sampled_from("rstu")),
    max_size=4,
    unique_by=lambda each: each[2],
).map(lambda several: [route(text, priority, name) for text, priority, name in several])
changes = st.lists(
    st.tuples(st.sampled_from(["set", "set", "leave"]), st.integers(0, 4), some_routes), max_size=25
)


@settings(deadline=None, max_examples=150)
@given(changes)
def test_match_finds_what_trying_the_routes_one_by_one_finds(changes: list[tuple[str, int, list[Route]]]) -> None:
    desk = Desk()
    asked: dict[str, list[Route]] = {}
    examples = [Example(0, a=a, b=b) for a in (-1, 0, 1) for b in (0, 1)]
    for what, number, wanted in changes:
        before = [desk.routes.match(example) for example in examples]
        version = desk.routes.version
        change(desk, asked, what, str(number), wanted)
        in_order = [(each, who) for who, routes in asked.items() for each in routes]
        in_order.sort(key=lambda each: -each[0].priority)
        for example, old in zip(examples, before, strict=True):
            matching = [
                each for each in in_order if not each[0].filter or each[0].filter.matches(example.properties)
            ]
            found = desk.routes.match(example)
            assert found is old or desk.routes.version > version
            if not matching:
                assert found is None
                continue
            first, _ = matching[0]
            assert found is not None
            assert (found.filter, found.priority) == (first.filter, first.priority)
            same = [
                who for each, who in in_order if (each.filter, each.priority) == (first.filter, first.priority)
            ]
            assert [each.consumer.name for each in found.members] == same


def change(desk: Desk, asked: dict[str, list[Route]], what: str, name: str, wanted: list[Route]) -> None:
    if what == "leave":
        if asked.pop(name, None) is not None:
            desk.routes.leave(name)
    elif name in asked:
        asked[name] = wanted
        desk.routes.configure(name, wanted)
    else:
        asked[name] = wanted
        desk.routes.join(name, wanted)


@pytest.mark.parametrize("strategy", ["round_robin", "dispatch_to_single", "pinned"])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.shard("simulation")) for seed in range(4, 30))]
)
def test_whatever_happens_all_is_handed_out_once_and_budgets_add_up(strategy: str, seed: int) -> None:
    random = Random(seed)
    desk = Desk(strategy, bucket_of)
    asked: dict[str, list[Route]] = {}
    pending: dict[int, LaneEntry[Example]] = {}
    handed: list[int] = []
    version = 0
    for position in range(1, 400):
        if random.random() < 0.1:
            wanted = [
                route(random.choice(TEXTS), random.randint(0, 1), name, capacity=random.randint(0, 4))
                for name in random.sample("rstu", random.randint(0, 4))
            ]
            change(desk, asked, random.choice(["set", "set", "leave"]), str(random.randint(0, 3)), wanted)
        if random.random() < 0.02:
            desk.routes.share_by(random.choice(STRATEGIES), bucket_of)
        pending[position] = entry = ready(position, a=random.randint(0, 1), b=random.randint(0, 1))
        desk.push(entry)
        if version != desk.routes.version:
            desk.routes.clear()
            desk.push(*pending.values())
            version = desk.routes.version
        before = len(desk.open)
        handed += [got for got, _ in desk.hand_out(random.randint(0, 5))]
        for delivery in desk.open[before:]:
            assert delivery.member in desk.group(**pending.pop(delivery.entry.position).message.properties).members
        desk.close(*random.sample(handed, len(handed) // 3))
        check_budgets(desk)
    for name in list(asked):
        desk.routes.leave(name)
    desk.routes.join("all", [route(capacity=1000)])
    desk.routes.clear()
    desk.push(*pending.values())
    handed += [got for got, _ in desk.hand_out()]
    assert sorted(handed) == list(range(1, 400))


def bucket_of(message: Example) -> int:
    return message.position * 7 % 11


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_strategy_holds_for_what_comes_next_and_what_is_open_stays(strategy: str) -> None:
    desk = Desk("round_robin")
    for name in ("one", "two"):
        desk.routes.join(name, [route(capacity=3)])
    entries = [ready(position, key=f"k{position}") for position in range(1, 9)]
    desk.push(*entries[:4])
    assert [name for _, name in desk.hand_out(2)] == ["one", "two"]
    version = desk.routes.version
    desk.routes.share_by(strategy, bucket_of)
    assert desk.routes.version > version
    assert desk.routes.clear() == entries[2:4]
    desk.push(*entries[2:])
    desk.hand_out()
    assert [len(desk.routes.consumers[name].deliveries) for name in ("one", "two")] == [3, 3]
    check_budgets(desk)
    desk.close(*range(1, 9))
    desk.hand_out()
    assert not any(each.has_queued for each in desk.routes.groups)
    moved, gone = desk.routes.changes()
    assert (moved, len(gone)) == (list(desk.routes.groups), 1)
    check_budgets(desk)


def check_budgets(desk: Desk) -> None:
    for consumer in desk.routes.consumers.values():
        for each in (*consumer.members.values(), *consumer.former.values()):
            mine = [delivery for delivery in consumer.deliveries if delivery.member is each]
            assert each.messages == len(mine)
            assert each.bytes == 100 * len(mine)
            assert each.messages <= max(each.route.capacity, each.messages if each.full else 0)
