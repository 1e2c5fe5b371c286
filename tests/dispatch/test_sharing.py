"""What is pinned to members that do not keep up goes to others: once they are late, or it fills the window."""

from typing import Any

from dispatch.examples import Desk, Example, ready, route
from dispatch.owner import Owner, start
from dispatch.test_strategies import desk_with, in_buckets, owners, several, who
from milepost.dispatch import Routes
from milepost.dispatch.routes import Route


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


class TestOneThatIsDoubted:
    def desk(self) -> Desk:
        """The odd buckets are a's, the even ones b's."""
        desk = desk_with("pinned", 9, 9)
        in_buckets(desk, 1, 2, 3, 4)
        assert who(desk) == "abab"
        return desk

    def test_loses_its_buckets_as_their_next_messages_come(self) -> None:
        desk = self.desk()
        desk.routes.configure("a", [Route(name="r", capacity=2)])
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

    def test_gets_the_bucket_of_the_next_message_when_it_has_room(self) -> None:
        desk = self.desk()
        desk.routes.configure("a", [Route(name="r", capacity=1)])
        desk.routes.doubt("a")
        desk.close(1, 3)
        in_buckets(desk, 2, 4, 1, start=5)
        assert desk.hand_out() == [(5, "a"), (6, "b"), (7, "b")]
        assert owners(desk) == {1: "b", 2: "a", 4: "b"}
        # And loses it again when it is late once more.
        desk.routes.doubt("a")
        in_buckets(desk, 2, start=8)
        assert who(desk) == "b"

    def test_gets_its_share_when_it_is_trusted_again(self) -> None:
        desk = self.desk()
        desk.routes.doubt("a")
        desk.routes.configure("a", [Route(name="r", capacity=2)])
        in_buckets(desk, 1, 3, start=5)
        assert who(desk) == "bb"
        desk.routes.configure("a", [Route(name="r", capacity=9)])
        desk.routes.trust("a")
        assert sorted(owners(desk).values()) == ["a", "a", "b", "b"]

    def test_is_trusted_though_nobody_doubted_it(self) -> None:
        desk = self.desk()
        before = owners(desk)
        desk.routes.trust("a")
        assert owners(desk) == before

    def test_keeps_everything_if_it_is_the_only_one(self) -> None:
        desk = desk_with("pinned", 9)
        in_buckets(desk, 1, 2)
        assert who(desk) == "aa"
        desk.routes.doubt("a")
        in_buckets(desk, 1, 2, 3, start=3)
        assert who(desk) == "aaa"

    def test_leaves_its_buckets_to_one_who_comes(self) -> None:
        desk = desk_with("pinned", 3)
        in_buckets(desk, 1, 2, 3)
        assert who(desk) == "aaa"
        desk.routes.doubt("a")
        in_buckets(desk, 1, start=4)
        desk.routes.join("b", [Route(name="r")])
        assert who(desk) == "b"
        in_buckets(desk, 2, 3, start=5)
        assert who(desk) == "bb"

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
        # Bucket 1 has one in flight, and 3 has none.
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
