"""How the members of a group share its messages."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.examples import Desk, Example, ready
from milepost.dispatch.delivery import STATUS_ASIDE, STATUS_GONE, STATUS_READY, LaneEntry
from milepost.dispatch.routing.pinned import PinnedGroup
from milepost.dispatch.routing.route import Route


def desk_with(strategy: str, *capacities: int) -> Desk:
    """Consumers a, b, c … with these capacities; a message's bucket is its property `bucket`."""
    desk = Desk(strategy, lambda message: int(message.properties["bucket"]) if message.properties else 0)
    for name, capacity in zip("abcdefgh", capacities, strict=False):
        desk.routes.join(name, [Route(name="r", capacity=capacity)])
    return desk


def who(desk: Desk) -> str:
    return "".join(name for _, name in desk.hand_out())


def several(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def test_round_robin_gives_to_each_in_turn_in_order_of_arrival() -> None:
    desk = desk_with("round_robin", 9, 9, 9)
    desk.push(*map(ready, several(1, 7)))
    assert who(desk) == "abcabca"
    desk.push(ready(8))
    assert who(desk) == "b"


def test_round_robin_passes_over_who_is_full() -> None:
    desk = desk_with("round_robin", 1, 3, 0, 2)
    desk.push(*map(ready, several(1, 9)))
    assert who(desk) == "abdbdb"


def test_round_robin_takes_who_gets_room_again_at_its_place_in_the_turn() -> None:
    desk = desk_with("round_robin", 1, 9, 9)
    desk.push(*map(ready, several(1, 2)))
    assert who(desk) == "ab"
    desk.close(1)
    desk.push(*map(ready, several(3, 6)))
    assert who(desk) == "cabc"


def test_round_robin_does_not_give_twice_to_who_settles_fast() -> None:
    desk = desk_with("round_robin", 1, 1, 1)
    got = ""
    for position in several(1, 7):
        desk.push(ready(position))
        got += who(desk)
        desk.close(position)
    assert got == "abcabca"


def test_round_robin_follows_a_changed_order_of_routes() -> None:
    desk = Desk()
    one, two = Route(name="one"), Route(name="two")
    desk.routes.join("a", [one, two])
    desk.routes.configure("a", [two, one])
    desk.push(ready(1), ready(2))
    desk.hand_out()
    assert desk.used_routes() == ["two", "one"]
    desk.routes.configure("a", [one])
    desk.push(ready(3), ready(4))
    desk.hand_out()
    assert desk.used_routes()[2:] == ["one", "one"]


def test_dispatch_to_single_gives_to_one_until_it_is_full() -> None:
    desk = desk_with("dispatch_to_single", 3, 2, 9)
    desk.push(*map(ready, several(1, 8)))
    assert who(desk) == "aaabbccc"


def test_dispatch_to_single_puts_who_gets_room_again_at_the_end() -> None:
    desk = desk_with("dispatch_to_single", 2, 2, 2)
    desk.push(*map(ready, several(1, 3)))
    assert who(desk) == "aab"
    desk.close(1)
    desk.push(*map(ready, several(4, 7)))
    assert who(desk) == "bcca"


def test_dispatch_to_single_goes_on_with_the_next_when_the_one_leaves() -> None:
    desk = desk_with("dispatch_to_single", 9, 9)
    desk.push(ready(1))
    assert who(desk) == "a"
    desk.routes.leave("a")
    desk.push(ready(2))
    assert who(desk) == "b"


def in_buckets(desk: Desk, *buckets: int, start: int = 1) -> None:
    desk.push(*(ready(position, bucket=bucket) for position, bucket in enumerate(buckets, start)))


def pinned(desk: Desk) -> PinnedGroup[Example]:
    (group,) = desk.routes.groups
    assert isinstance(group, PinnedGroup)
    return group


def owners(desk: Desk) -> dict[int, str]:
    return {bucket: owner.consumer.name for bucket, owner in sorted(pinned(desk).buckets.owners.items())}


@pytest.mark.parametrize("strategy", ["pinned", "pinned_by_correlation"])
def test_a_bucket_stays_with_its_owner(strategy: str) -> None:
    desk = desk_with(strategy, 9, 9)
    in_buckets(desk, 7, 8, 8, 7, 7, 8)
    assert who(desk) == "abbaab"


def test_an_unowned_bucket_goes_to_the_member_with_the_fewest_then_to_who_came_first() -> None:
    desk = desk_with("pinned", 9, 9)
    in_buckets(desk, 1, 2, 3)
    assert who(desk) == "aba"
    desk.routes.join("c", [Route(name="r")])
    assert owners(desk) == {1: "c", 2: "b", 3: "a"}
    in_buckets(desk, 4, 5, 6, 7, start=4)
    assert who(desk) == "abca"


def test_the_buckets_of_one_who_leaves_are_shared_out_as_their_next_messages_come() -> None:
    desk = desk_with("pinned", 9, 9, 9)
    in_buckets(desk, 1, 2, 3, 4, 5, 6)
    assert who(desk) == "abcabc"
    desk.routes.leave("a")
    assert owners(desk) == {2: "b", 3: "c", 5: "b", 6: "c"}
    in_buckets(desk, 4, 2, 1, start=7)
    assert who(desk) == "bbc"


def test_a_bucket_has_no_owner_before_its_first_entry_comes_up() -> None:
    desk = desk_with("pinned", 9)
    pinned(desk).known_to = 1
    in_buckets(desk, 1, 2)
    assert who(desk) == "a"
    assert owners(desk) == {1: "a"}


def test_a_newcomer_takes_the_buckets_with_the_least_in_flight() -> None:
    desk = desk_with("pinned", 99)
    in_buckets(desk, 1, 1, 1, 2, 2, 3, 4, 4)
    who(desk)
    desk.routes.join("b", [Route(name="r")])
    assert owners(desk) == {1: "a", 2: "b", 3: "b", 4: "a"}


def test_in_flight_counts_only_what_is_open() -> None:
    desk = desk_with("pinned", 99)
    in_buckets(desk, 1, 1, 2, 3, 4, 4)
    who(desk)
    desk.close(1, 2)
    assert pinned(desk).buckets.in_flight == {2: 1, 3: 1, 4: 2}
    desk.routes.join("b", [Route(name="r")])
    assert owners(desk) == {1: "b", 2: "b", 3: "a", 4: "a"}


def test_a_newcomer_takes_only_from_those_above_the_average() -> None:
    desk = desk_with("pinned", 99)
    in_buckets(desk, *several(1, 12), *several(5, 12))
    who(desk)
    desk.routes.join("b", [Route(name="r")])
    desk.routes.join("c", [Route(name="r")])
    # b took 1 to 4, which had the least in flight, and 5 and 6; c then took two from each, the least first.
    assert owners(desk) == {bucket: "ccbbbbccaaaa"[bucket - 1] for bucket in several(1, 12)}


def test_a_newcomer_among_few_buckets_takes_none() -> None:
    desk = desk_with("pinned", 99, 99)
    in_buckets(desk, 1, 2)
    who(desk)
    desk.routes.join("c", [Route(name="r")])
    assert owners(desk) == {1: "a", 2: "b"}


def test_the_entries_of_a_full_owner_wait_while_those_of_others_go_on() -> None:
    desk = desk_with("pinned", 1, 9)
    in_buckets(desk, 1, 2, 1, 2, 1, 2)
    assert desk.hand_out() == [(1, "a"), (2, "b"), (4, "b"), (6, "b")]
    assert desk.routes.crowded() == []
    desk.close(1)
    assert desk.hand_out() == [(3, "a")]
    desk.close(3)
    assert desk.hand_out() == [(5, "a")]


def test_what_waited_and_what_is_new_go_out_in_order_of_position() -> None:
    desk = desk_with("pinned", 2, 2)
    in_buckets(desk, 1, 2, 1, 2, 1, 2, 1, 2)
    assert len(desk.hand_out()) == 4
    in_buckets(desk, 1, 2, start=9)
    desk.close(1, 2, 3, 4)
    assert desk.hand_out() == [(5, "a"), (6, "b"), (7, "a"), (8, "b")]


def test_what_is_new_comes_before_what_waited_if_its_position_is_lower() -> None:
    desk = desk_with("pinned", 1, 9)
    in_buckets(desk, 1, 2, start=1)
    in_buckets(desk, 1, start=5)
    assert who(desk) == "ab"
    desk.close(1)
    in_buckets(desk, 2, start=3)
    in_buckets(desk, 2, start=9)
    assert desk.hand_out() == [(3, "b"), (5, "a"), (9, "b")]


def test_what_waited_is_not_taken_above_the_known() -> None:
    desk = desk_with("pinned", 1, 9)
    in_buckets(desk, 1, 2, 1)
    assert who(desk) == "ab"
    pinned(desk).known_to = 2
    desk.close(1)
    assert who(desk) == ""
    pinned(desk).known_to = 3
    assert who(desk) == "a"


def test_what_waits_is_seen_when_the_group_is_full() -> None:
    desk = desk_with("pinned", 1, 2)
    in_buckets(desk, 1, 2, 1, 2)
    assert who(desk) == "abb"
    assert desk.routes.crowded() == [pinned(desk)]


def test_what_waits_for_one_who_leaves_goes_to_others() -> None:
    desk = desk_with("pinned", 1, 9)
    in_buckets(desk, 1, 2, 1, 1)
    assert who(desk) == "ab"
    desk.routes.leave("a")
    assert desk.hand_out() == [(3, "b"), (4, "b")]


def test_one_who_leaves_before_it_gets_what_waited_leaves_that_to_others() -> None:
    desk = desk_with("pinned", 1, 9)
    in_buckets(desk, 1, 2, 1)
    assert who(desk) == "ab"
    desk.close(1)
    desk.routes.leave("a")
    assert desk.hand_out() == [(3, "b")]


def test_what_waits_in_a_bucket_that_moves_goes_to_its_new_owner() -> None:
    desk = desk_with("pinned", 2, 9)
    in_buckets(desk, 1, 2, 3, 1, 3)
    assert who(desk) == "aba"
    desk.routes.join("c", [Route(name="r")])
    assert desk.hand_out() == [(4, "c")]
    desk.close(1, 3)
    assert desk.hand_out() == [(5, "a")]


def test_of_members_with_equally_few_the_first_in_a_changed_order_gets_a_bucket() -> None:
    desk = desk_with("pinned")
    one, two = Route(name="one"), Route(name="two")
    desk.routes.join("a", [one, two])
    desk.routes.configure("a", [two, one])
    in_buckets(desk, 1, 2)
    desk.hand_out()
    assert desk.used_routes() == ["two", "one"]


def test_a_withdrawn_entry_that_waited_is_passed_over() -> None:
    desk = desk_with("pinned", 1, 9)
    entries = [ready(position, bucket=bucket) for position, bucket in enumerate([1, 2, 1, 1, 2], 1)]
    desk.push(*entries)
    assert desk.hand_out() == [(1, "a"), (2, "b"), (5, "b")]
    desk.close(1)
    entries[2].status = STATUS_ASIDE
    assert desk.hand_out() == [(4, "a")]
    desk.close(4)
    desk.push(entries[2])
    assert desk.hand_out() == [(3, "a")]


def test_one_withdrawn_while_its_bucket_moves_comes_to_the_new_owner_once() -> None:
    desk = desk_with("pinned", 1)
    pinned_group = pinned(desk)
    entries = [ready(position, bucket=bucket) for position, bucket in enumerate([1, 2, 1], 1)]
    desk.push(*entries)
    assert who(desk) == "a"
    assert pinned_group.has_queued
    entries[2].status = STATUS_ASIDE
    desk.routes.configure("a", [Route(name="r", capacity=2)])
    assert who(desk) == "a"
    desk.routes.join("b", [Route(name="r")])
    desk.push(entries[2])
    assert desk.hand_out() == [(3, "b")]
    desk.close(1, 2)
    assert who(desk) == ""


def test_clear_finds_what_waits_for_a_full_owner() -> None:
    desk = desk_with("pinned", 1, 9)
    in_buckets(desk, 1, 2, 1, 2, 1)
    desk.hand_out()
    in_buckets(desk, 2, start=4)
    assert [entry.position for entry in pinned(desk).clear()] == [3, 4, 5]
    assert not pinned(desk).has_queued


def test_a_member_that_only_changes_its_capacity_keeps_its_buckets() -> None:
    desk = desk_with("pinned", 9, 9)
    in_buckets(desk, 1, 2, 3, 4)
    who(desk)
    before = owners(desk)
    desk.routes.configure("a", [Route(name="r", capacity=5), Route(name="other", priority=-1)])
    desk.routes.configure("a", [Route(name="r", capacity=7)])
    assert owners(desk) == before


def test_a_member_that_comes_from_another_group_brings_nothing_in_flight() -> None:
    desk = desk_with("pinned", 9, 9)
    in_buckets(desk, 1, 2)
    who(desk)
    desk.routes.configure("a", [Route("bucket >= 0", name="r")])
    first, second = desk.routes.groups
    assert isinstance(first, PinnedGroup)
    assert isinstance(second, PinnedGroup)
    assert first.buckets.in_flight == {2: 1}
    desk.close(1)
    assert second.buckets.in_flight == {}


@pytest.mark.parametrize("strategy", ["round_robin", "dispatch_to_single", "pinned"])
def test_a_thousand_members_are_not_looked_at_for_each_message(strategy: str) -> None:
    desk = Desk(strategy, lambda message: message.position % 1024)
    for number in range(1000):
        desk.routes.join(str(number), [Route(name="r", capacity=1)])
    desk.push(*map(ready, several(1, 1024)))
    assert len(desk.hand_out()) == 1000
    (group,) = desk.routes.groups
    group.members = []
    desk.close(*several(1, 10))
    desk.push(*map(ready, several(1025, 1035)))
    assert len(desk.hand_out()) == 10


steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 4)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("resize"), st.integers(0, 5)),
        st.tuples(st.just("push"), st.integers(1, 40)),
        st.tuples(st.just("close"), st.integers(1, 40)),
        st.tuples(st.just("withdraw"), st.integers(1, 3)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(steps, st.integers(0, 2**32))
def test_each_bucket_has_one_owner_who_is_there_and_newcomers_get_their_share(
    steps: list[tuple[str, int]], seed: int
) -> None:
    random = Random(seed)
    desk = Desk("pinned", lambda message: int(message.properties["bucket"]))
    desk.routes.join("stays", [Route(name="r", capacity=3)])
    position = 0
    waiting: dict[int, LaneEntry[Example]] = {}
    for number, (what, amount) in enumerate(steps):
        present = list(desk.routes.consumers)
        if what == "join":
            join_and_check(desk, f"c{number}", amount)
        elif what == "leave" and amount < len(present) - 1:
            desk.routes.leave(present[amount + 1])
        elif what == "resize" and amount < len(present):
            desk.routes.configure(present[amount], [Route(name="r", capacity=random.randint(0, 5))])
        elif what == "push":
            for _ in range(amount):
                position += 1
                waiting[position] = entry = ready(position, bucket=random.randint(0, 15))
                desk.push(entry)
        elif what == "close":
            desk.close(*(delivery.entry.position for delivery in desk.open[:amount]))
        elif what == "withdraw":
            again = random.sample(sorted(waiting), min(amount, len(waiting)))
            for each in again:
                waiting[each].status = STATUS_ASIDE
            desk.push(*(waiting[each] for each in again[1:]))
            for each in again[:1]:
                waiting.pop(each).status = STATUS_GONE
        most = random.choice([5, 1000])
        handed = desk.hand_out(most)
        for got, name in handed:
            assert owners(desk)[int(waiting.pop(got).message.properties["bucket"])] == name
        check_buckets(desk)
        if len(handed) < most:
            check_nothing_is_stranded(desk, waiting)


def check_buckets(desk: Desk) -> None:
    group = pinned(desk)
    assert set(group.buckets.owners.values()) <= set(group.members)
    here = [each.message for each in desk.open if each.member and each.member.group is group]
    assert group.buckets.in_flight == Counter(message.properties["bucket"] for message in here)


def check_nothing_is_stranded(desk: Desk, waiting: dict[int, LaneEntry[Example]]) -> None:
    group = pinned(desk)
    for entry in waiting.values():
        owner = group.buckets.owners.get(entry.message.properties["bucket"])
        assert not group.has_room or entry.status != STATUS_READY or (owner and owner.full)


def join_and_check(desk: Desk, name: str, capacity: int) -> None:
    group = pinned(desk)
    before = dict(group.buckets.owners)
    consumer = desk.routes.join(name, [Route(name="r", capacity=capacity)])
    had, has = Counter(before.values()), Counter(group.buckets.owners.values())
    newcomer = consumer.members["r"]
    average = len(before) // len(group.members)
    assert has[newcomer] == average
    in_flight = Counter(group.buckets.in_flight)
    moved = [bucket for bucket, owner in group.buckets.owners.items() if owner is newcomer]
    for owner, number in had.items():
        assert has[owner] >= min(number, average)
        still = [bucket for bucket, each in group.buckets.owners.items() if each is owner]
        if has[owner] > average:
            assert max([(in_flight[b], b) for b in moved], default=(0, -1)) < min((in_flight[b], b) for b in still)
