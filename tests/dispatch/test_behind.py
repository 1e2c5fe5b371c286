"""Routes that have rows in the store: what was set aside comes back, in order, and holds up nobody else."""

from typing import Any

from dispatch.examples import Example, route
from dispatch.owner import Owner, start, stored
from milepost.dispatch import ExchangeQuery, LoadedRow, Routes, RowCounts


def unrouted(position: int, label: str | None = None, **properties: Any) -> LoadedRow[Example]:
    loaded = stored(position, "unrouted", key=None, route=label)
    return LoadedRow(loaded.row, Example(position, **properties))


def lane(strategy: str = "round_robin", **settings: Any) -> Owner:
    routes: Routes[Example] = Routes(strategy, lambda message: message.properties["bucket"])
    return Owner(routes=routes, **{"ordered": False, "state": start(1000, rows=True), **settings})


def asked(owner: Owner) -> ExchangeQuery:
    ask = owner.exchange().ask
    owner.lane.abandon()
    assert ask is not None
    return ask


def test_a_new_route_looks_through_all_unrouted_rows() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1", capacity=2)])
    ask = asked(owner)
    assert (ask.unrouted_after, ask.routes) == (0, None)
    assert ask.unrouted_limit > 2


def test_of_what_a_scan_finds_a_route_takes_what_it_has_room_for_and_goes_on_there() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1", capacity=2)])
    owner.write(unrouted=[unrouted(n, p=1) for n in (1, 2, 3, 4)], unrouted_end=None)
    assert owner.routed() == [(1, "one"), (2, "one")]
    owner.ack(1, 2)
    assert asked(owner).unrouted_after == 2


def test_what_is_not_known_yet_waits_for_what_is_before_it() -> None:
    owner = lane()
    owner.lane.join("one", [route("p == 1")])
    owner.fill(Example(1001, p=1), up_to=1001)
    assert owner.routed() == []
    owner.write(unrouted=[unrouted(1, p=1)], unrouted_end=500)
    assert owner.routed() == [(1, "one")]
    owner.write(unrouted=[unrouted(600, p=1)], unrouted_end=None)
    assert owner.routed() == [(600, "one"), (1001, "one")]


def test_a_route_that_is_behind_holds_up_no_other() -> None:
    owner = lane(state=start(0))
    owner.lane.join("old", [route("p == 1")])
    owner.fill(Example(1, p=2), Example(2, p=1), up_to=2)
    owner.routed()
    owner.write(counts=RowCounts(unrouted=1))
    owner.lane.join("new", [route("p == 2")])
    owner.fill(Example(3, p=1), Example(4, p=2), up_to=4)
    assert owner.routed() == [(3, "old")]


def test_a_busy_route_does_not_keep_a_new_one_from_its_rows() -> None:
    owner = lane(state=start(0), window=100)
    owner.lane.join("busy", [route("p == 1")])
    owner.fill(Example(1, p=2), *(Example(n, p=1) for n in range(2, 50)), up_to=50)
    owner.next(limit=10)
    owner.write(counts=RowCounts(unrouted=1))
    owner.lane.join("new", [route("p == 2")])
    owner.next(limit=10)
    assert asked(owner).unrouted_after == 0
    owner.write(unrouted=[unrouted(1, p=2)], unrouted_end=None)
    assert 1 in owner.next(limit=100)


def full(*consumers: tuple[str, str]) -> Owner:
    """Consumers that have room for one each, and rows that were set aside for the first."""
    owner = lane(state=start(0), window=2)
    for name, where in consumers:
        owner.lane.join(name, [route(where, capacity=1)])
    owner.lane.join("idle", [route("p == 9")])
    owner.fill(*(Example(n, p=1, q=1) for n in range(1, 3)), up_to=2)
    owner.routed()
    while owner.lane.room() > 0:
        position = owner.lane.reach + 1
        owner.fill(Example(position, p=1, q=1), up_to=position)
        owner.routed()
    return owner


def test_what_was_set_aside_for_a_route_that_is_gone_goes_to_the_next_that_matches() -> None:
    owner = full(("first", "p == 1"), ("second", "q == 1"))
    rows = owner.write(counts=RowCounts(unrouted=2))
    assert rows
    label = next(iter(rows.values())).route  # type: ignore[union-attr]
    owner.lane.leave("first")
    owner.routed()
    ask = asked(owner)
    assert ask.routes is not None
    assert label in ask.routes


def test_when_ranks_change_what_was_set_aside_is_looked_at_again() -> None:
    owner = full(("first", "p == 1"), ("second", "q == 1"), ("third", "p == 1"))
    rows = owner.write(counts=RowCounts(unrouted=2))
    label = next(iter(rows.values())).route  # type: ignore[union-attr]
    owner.lane.leave("first")
    owner.ack(*[n for n in owner.open if owner.open[n].consumer == "third"])
    owner.routed()
    ask = asked(owner)
    assert ask.routes is not None
    assert label in ask.routes
    owner.write(unrouted=[unrouted(position, label, p=1, q=1) for position in rows], unrouted_end=None)
    assert {consumer for _, consumer in owner.routed()} <= {"second", "third"}


def test_rows_of_a_full_owner_do_not_all_come_into_memory() -> None:
    owner = lane("pinned")
    owner.lane.join("full", [route(capacity=1)])
    owner.lane.join("idle", [route(capacity=5)])
    rows = [unrouted(n, bucket=0) for n in range(1, 900)]
    scans = 0
    while (exchange := owner.lane.exchange(owner.now)) and exchange.ask and exchange.ask.unrouted_limit:
        scans += 1
        after = exchange.ask.unrouted_after or 0
        found = [loaded for loaded in rows if loaded.row.position > after][: exchange.ask.unrouted_limit]
        owner.lane.exchanged(
            owner.answer(exchange, unrouted=found, unrouted_end=found[-1].row.position if found else None)
        )
        owner.lane.next(owner.now)
    assert scans < 10
    assert len(owner.lane._lane_memory.rows) <= 10


def test_a_full_window_that_writing_would_relieve_is_urgent() -> None:
    owner = lane(state=start(0), window=3)
    owner.lane.join("one", [route("p == 1")])
    owner.fill(*(Example(n, p=2) for n in (1, 2, 3)), up_to=3)
    owner.routed()
    assert owner.lane.room() == 0
    assert owner.lane.urgent(owner.now)
    owner.write(counts=RowCounts(unrouted=3))
    assert owner.lane.room() == 3
    assert not owner.lane.urgent(owner.now)


def test_joining_and_leaving_costs_the_same_with_many_routes() -> None:
    routes: Routes[Example] = Routes("round_robin")
    for number in range(2000):
        routes.join(str(number), [route(f"p == {number}")])
        routes.clear()
        moved, gone = routes.changes()
        assert (len(moved), len(gone)) == (1, 0)
    routes.leave("7")
    assert [len(changed) for changed in routes.changes()] == [0, 1]
