"""What is pinned to members that do not keep up goes to others: once they are late, or it fills the window."""

from typing import Any

from dispatch.examples import Desk, Example, ready, route
from dispatch.owner import Owner, start
from dispatch.test_strategies import desk_with, in_buckets, owners, pinned, several, who
from milepost.dispatch import Routes, State
from milepost.dispatch.routing.route import Route


def lane(window: int, *capacities: int, **settings: Any) -> Owner:
    """A lane with such a window, and consumers a, b, c … with these capacities."""
    routes: Routes[Example] = Routes("pinned", lambda message: message.properties["bucket"])
    owner = Owner(routes=routes, **{"ordered": False, "state": start(0), "window": window, **settings})
    for name, capacity in zip("abcdefgh", capacities, strict=False):
        owner.lane.join(name, [route(capacity=capacity)])
    return owner


def fill(owner: Owner, first: int, *buckets: int) -> None:
    examples = [Example(position, bucket=bucket) for position, bucket in enumerate(buckets, first)]
    owner.fill(*examples, up_to=first + len(buckets) - 1)


def resize(desk: Desk, name: str, capacity: int) -> None:
    desk.routes.configure(name, [Route(name="r", capacity=capacity)])


class TestOneThatIsDoubted:
    def desk(self) -> Desk:
        """The odd buckets are a's, the even ones b's."""
        desk = desk_with("pinned", 9, 9)
        in_buckets(desk, 1, 2, 3, 4)
        assert who(desk) == "abab"
        return desk

    def test_loses_its_buckets_as_their_next_messages_come(self) -> None:
        desk = self.desk()
        resize(desk, "a", 2)
        desk.routes.doubt("a")
        assert owners(desk) == {2: "b", 4: "b"}
        in_buckets(desk, 1, 2, 3, 5, start=5)
        assert who(desk) == "bbbb"
        assert owners(desk) == dict.fromkeys([1, 2, 3, 4, 5], "b")

    def test_loses_what_waited_for_it(self) -> None:
        desk = desk_with("pinned", 1, 9)
        in_buckets(desk, 1, 2, 1, 1)
        assert who(desk) == "ab"
        desk.routes.doubt("a")
        assert desk.hand_out() == [(3, "b"), (4, "b")]

    def test_is_lent_single_messages_while_it_has_room_in_turn_with_others(self) -> None:
        desk = self.desk()
        resize(desk, "a", 2)
        desk.routes.doubt("a")
        desk.close(1, 3)
        in_buckets(desk, 2, 4, 2, 4, 1, 3, start=5)
        assert who(desk) == "bababb"
        assert owners(desk) == dict.fromkeys([1, 2, 3, 4], "b")
        in_buckets(desk, 4, 2, start=11)
        desk.close(6)
        # Down to four fifths of two it has room again.
        desk.close(8)
        assert who(desk) == "ab"

    def test_does_not_get_back_what_was_taken_from_it(self) -> None:
        desk = desk_with("pinned", 1, 9)
        desk.routes.doubt("a")
        in_buckets(desk, 1, 2)
        assert desk.hand_out() == [(1, "b"), (2, "a")]
        desk.routes.doubt("a")
        desk.close(2)
        in_buckets(desk, 2, start=2)
        assert desk.hand_out() == [(2, "b")]

    def test_gets_nothing_that_has_failed(self) -> None:
        desk = desk_with("pinned", 9, 9)
        desk.routes.doubt("a")
        failed = ready(2, bucket=2)
        failed.row = failed.as_row(State.RETRYING, 0.0).changed(attempts=1)
        desk.push(ready(1, bucket=1), failed, ready(3, bucket=3))
        assert desk.hand_out() == [(1, "b"), (2, "b"), (3, "a")]

    def test_gets_its_share_when_it_is_trusted_again(self) -> None:
        desk = self.desk()
        resize(desk, "a", 2)
        desk.routes.doubt("a")
        in_buckets(desk, 1, 3, start=5)
        assert who(desk) == "bb"
        resize(desk, "a", 9)
        desk.routes.trust("a")
        assert sorted(owners(desk).values()) == ["a", "a", "b", "b"]
        # From now on as if nothing had happened.
        in_buckets(desk, *owners(desk), *owners(desk), start=7)
        assert who(desk) == 2 * "".join(owners(desk).values())

    def test_is_trusted_though_nobody_doubted_it(self) -> None:
        desk = self.desk()
        before = owners(desk)
        desk.routes.trust("a")
        assert owners(desk) == before

    def test_stays_so_whatever_it_asks_for(self) -> None:
        desk = self.desk()
        desk.routes.doubt("a")
        desk.routes.configure("a", [])
        resize(desk, "a", 2)
        in_buckets(desk, 1, 3, start=5)
        assert who(desk) == "bb"

    def test_keeps_everything_if_it_is_the_only_one(self) -> None:
        desk = desk_with("pinned", 9)
        in_buckets(desk, 1, 2)
        assert who(desk) == "aa"
        desk.routes.doubt("a")
        in_buckets(desk, 1, 2, 3, start=3)
        assert who(desk) == "aaa"

    def test_leaves_its_buckets_to_one_who_comes(self) -> None:
        desk = desk_with("pinned", 3)
        desk.routes.doubt("a")
        in_buckets(desk, 1, 2, 3)
        assert who(desk) == "aaa"
        desk.routes.join("b", [Route(name="r")])
        assert owners(desk) == {}
        in_buckets(desk, 1, 2, 3, start=4)
        assert who(desk) == "bbb"

    def test_leaves_its_buckets_to_one_who_is_trusted_again(self) -> None:
        desk = desk_with("pinned", 2, 9)
        desk.routes.doubt("a")
        desk.routes.doubt("b")
        in_buckets(desk, 1, 2, 3)
        assert who(desk) == "aba"
        desk.routes.trust("b")
        in_buckets(desk, 1, 3, 1, 3, start=4)
        assert who(desk) == "bbbb"

    def test_is_the_owner_again_when_the_others_have_gone(self) -> None:
        desk = self.desk()
        desk.routes.doubt("a")
        desk.routes.leave("b")
        in_buckets(desk, 1, 2, start=5)
        assert who(desk) == "aa"

    def test_may_leave(self) -> None:
        desk = self.desk()
        desk.routes.doubt("a")
        desk.routes.leave("a")
        in_buckets(desk, 1, 2, start=5)
        assert who(desk) == "bb"

    def test_means_nothing_to_other_strategies(self) -> None:
        desk = desk_with("round_robin", 9, 9)
        desk.routes.doubt("a")
        desk.push(*map(ready, several(1, 4)))
        assert who(desk) == "abab"
        desk.routes.trust("a")


class TestAFullWindow:
    def test_of_what_waits_for_one_goes_to_those_with_nothing_to_do(self) -> None:
        owner = lane(4, 1, 9)
        fill(owner, 1, 1, 2, 1)
        assert owner.routed() == [(1, "a"), (2, "b")]
        assert owner.routed() == []
        fill(owner, 4, 1, 3, 3)
        assert owner.routed() == [(3, "b"), (4, "b"), (5, "b"), (6, "b")]

    def test_only_as_much_as_they_have_room_for(self) -> None:
        owner = lane(4, 3, 2)
        fill(owner, 1, 1, 2, 3)
        assert owner.routed() == [(1, "a"), (2, "b"), (3, "a")]
        owner.lane.configure("a", [route(capacity=2)])
        fill(owner, 4, 1, 3, 1, 3)
        # One bucket is enough for the one that b has room for; what it has no room for waits for it.
        assert owner.routed() == [(4, "b")]
        owner.ack(1, 3)
        assert owner.routed() == [(5, "a"), (7, "a")]
        owner.ack(2, 4)
        assert owner.routed() == [(6, "b")]

    def test_the_least_in_flight_first(self) -> None:
        desk = desk_with("pinned", 3, 1)
        in_buckets(desk, 1, 2, 1, 3, 1, 3)
        assert who(desk) == "abaa"
        desk.close(2)
        assert who(desk) == ""
        assert desk.routes.share()
        assert desk.hand_out() == [(6, "b")]
        assert owners(desk) == {1: "a", 2: "b", 3: "b"}

    def test_to_those_with_room_in_turn(self) -> None:
        desk = desk_with("pinned", 4, 9, 9)
        in_buckets(desk, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
        assert who(desk) == "abcabcabca"
        in_buckets(desk, 1, 4, 7, 10, start=11)
        assert who(desk) == ""
        assert desk.routes.share()
        assert who(desk) == "bcbc"

    def test_and_counts_what_each_has(self) -> None:
        desk = desk_with("pinned", 1, 9)
        in_buckets(desk, 1, 2, 1)
        assert who(desk) == "ab"
        assert desk.routes.share()
        in_buckets(desk, 3, 4, start=4)
        assert (who(desk), owners(desk)) == ("b", {1: "b", 2: "b", 3: "a", 4: "a"})

    def test_but_not_what_is_not_known_yet(self) -> None:
        desk = desk_with("pinned", 1, 9)
        in_buckets(desk, 1, 2, 1)
        assert who(desk) == "ab"
        pinned(desk).known_to = 2
        assert not desk.routes.share()
        assert owners(desk) == {1: "a", 2: "b"}
        pinned(desk).known_to = 3
        assert desk.routes.share()

    def test_to_one_that_is_doubted_if_nobody_else_has_room(self) -> None:
        desk = desk_with("pinned", 1, 1, 9)
        in_buckets(desk, 1, 2, 3)
        assert who(desk) == "abc"
        desk.routes.doubt("c")
        in_buckets(desk, 1, 2, 1, start=4)
        assert who(desk) == ""
        assert desk.routes.share()
        # One, which is lent.
        assert desk.hand_out() == [(4, "c")]
        assert owners(desk) == {1: "a", 2: "b"}
        desk.close(1)
        assert desk.hand_out() == [(6, "a")]

    def test_one_that_pauses_holds_up_nobody(self) -> None:
        owner = lane(3, 9, 9)
        fill(owner, 1, 1, 2)
        assert owner.routed() == [(1, "a"), (2, "b")]
        owner.lane.configure("a", [route(capacity=0)])
        owner.ack(1, 2)
        fill(owner, 3, 1, 1, 1)
        assert owner.routed() == [(3, "b"), (4, "b"), (5, "b")]

    def test_that_is_not_full_moves_nothing(self) -> None:
        owner = lane(5, 1, 9)
        fill(owner, 1, 1, 2, 1, 1, 1)
        assert owner.routed() == [(1, "a"), (2, "b")]
        assert owner.routed() == []
        owner.ack(1)
        assert owner.routed() == [(3, "a")]

    def test_costs_nothing_where_nobody_can_share(self) -> None:
        """Also with very many routes nothing is looked at."""
        for strategy, capacities in (("round_robin", [1, 9]), ("pinned", [1])):
            desk = desk_with(strategy, *capacities)
            in_buckets(desk, 1, 2, 3)
            desk.hand_out()
            assert not desk.routes._uneven
