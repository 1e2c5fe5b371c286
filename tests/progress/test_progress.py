"""Progress: subscriptions, ownership, cursors and rows, the same whatever keeps them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from milepost.dispatch import (
    AttemptTally,
    Cursor,
    DeliveryRow,
    Exchange,
    ExchangeWrite,
    RowChange,
    RowCounts,
    State,
    Suspicion,
)
from milepost.dispatch.breaker import breaker_state_after
from milepost.progress.protocol import LaneGrant, RolledBack, RowLocation, RowOnly, StaleLane
from progress.keepers import Keeper
from progress.lanes import STALL_AFTER, Owner, asking, definition, held_positions, positions, row, taken


@pytest.fixture
async def owner(keeper: Keeper) -> Owner:
    """The owner of lane 0 of a new subscription."""
    return Owner(keeper.progress, await taken(keeper.progress))


async def nobody(positions: Sequence[int]) -> list[RowLocation]:
    """Where there are no rows."""
    assert not positions
    return []


class TestDeclare:
    async def test_what_is_new_is_created_where_it_starts(self, keeper: Keeper) -> None:
        start = Cursor(70, ((72, 75), (90, 90)))
        [opened] = await keeper.progress.declare([definition(lanes=3, start=start)])
        assert (opened.created, opened.number, opened.lanes, opened.status, opened.changed) == (
            True,
            1,
            3,
            "running",
            None,
        )
        held = await keeper.progress.take(opened.id, [2, 0, 1])
        assert [(one.lane, one.state.cursor) for one in held] == [(0, start), (1, start), (2, start)]

    async def test_one_that_is_new_may_begin_paused(self, keeper: Keeper) -> None:
        found = await keeper.progress.declare([definition("a", paused=True), definition("b")])
        assert [one.status for one in found] == ["paused", "running"]
        found = await keeper.progress.declare([definition("a"), definition("b", paused=True)])
        assert [one.status for one in found] == ["paused", "running"]

    async def test_what_is_known_is_told_in_the_order_of_the_question(self, keeper: Keeper) -> None:
        first = await keeper.progress.declare([definition("b"), definition("a"), definition("b", group="h")])
        again = await keeper.progress.declare([definition("b"), definition("a"), definition("b", group="h")])
        assert [one.id for one in again] == [one.id for one in first]
        assert len({one.id for one in first}) == 3
        assert [one.created for one in again] == [False] * 3

    async def test_where_it_begins_is_of_no_account_later(self, keeper: Keeper) -> None:
        await keeper.progress.declare([definition(start=Cursor(5))])
        held = await taken(keeper.progress, start=Cursor(9))
        assert held.state.cursor == Cursor(5)

    async def test_many_processes_at_once(self, keeper: Keeper) -> None:
        names = [definition(name) for name in "abc"]
        others = [await keeper.another() for _ in range(5)]
        found = await asyncio.gather(
            *(other.declare(names if number % 2 else names[::-1]) for number, other in enumerate(others))
        )
        assert len({one.id for opened in found for one in opened}) == 3
        assert sum(one.created for opened in found for one in opened) == 3

    async def test_renamed(self, keeper: Keeper) -> None:
        [old] = await keeper.progress.declare([definition("old")])
        for _ in range(2):
            [new] = await keeper.progress.declare([definition("new", renamed_from="old")])
            assert (new.id, new.created) == (old.id, False)
        [fresh] = await keeper.progress.declare([definition("fresh", renamed_from="nobody")])
        assert fresh.created

    async def test_a_rename_does_not_take_what_has_the_name(self, keeper: Keeper) -> None:
        both = await keeper.progress.declare([definition("old"), definition("new")])
        [new] = await keeper.progress.declare([definition("new", renamed_from="old")])
        assert new.id == both[1].id

    async def test_what_changed_gets_a_number_and_words(self, keeper: Keeper) -> None:
        held = await taken(keeper.progress)
        for lane in (0, 1):
            [held] = await keeper.progress.take(held.subscription, [lane])
            await Owner(keeper.progress, held).swap(ExchangeWrite(Cursor(81_244 + lane), (), AttemptTally(1)))
        [changed] = await keeper.progress.declare([definition(selects="category order")])
        assert (changed.number, changed.created) == (2, False)
        assert changed.changed is not None
        assert "selected everything" in changed.changed
        assert "now selects category order, from position 81,244 on" in changed.changed
        [same] = await keeper.progress.declare([definition(selects="category order")])
        assert (same.number, same.changed) == (2, None)

    async def test_another_order_and_other_lanes_begin_at_one_position(self, keeper: Keeper) -> None:
        [opened] = await keeper.progress.declare([definition(lanes=2, start=Cursor(7))])
        new = definition(lanes=4, orders="function 2")
        [pending] = await keeper.progress.declare([new])
        assert (pending.lanes, pending.number, pending.pending) == (2, 1, "ready")
        said = await keeper.progress.reorder(opened.id, new, nobody)
        assert said is not None
        assert said == (
            "order changed from stream to a function, version 2; lanes changed from 2 to 4, from position 7 on"
        )
        [changed] = await keeper.progress.declare([new])
        assert (changed.lanes, changed.number, changed.orders, changed.pending) == (4, 2, "function 2", None)
        held = await keeper.progress.take(opened.id, range(9), 2)
        assert [one.state.cursor for one in held] == [Cursor(7)] * 4
        assert await keeper.progress.reorder(opened.id, new, nobody) is None

    async def test_another_order_fences_and_takes_rows_along(self, keeper: Keeper) -> None:
        held = await taken(keeper.progress, lanes=2)
        owner = Owner(keeper.progress, held)
        await owner.swap(
            ExchangeWrite(Cursor(9), (RowChange(3, None, row(3)), RowChange(5, None, row(5))), AttemptTally(0, 2))
        )
        await keeper.progress.release(owner.held, None)
        [other] = await keeper.progress.take(held.subscription, [1])
        await keeper.progress.release(other, Exchange(0.0, ExchangeWrite(Cursor(9), (), AttemptTally(1)), None))
        new = definition(lanes=3, orders="property p")
        await keeper.progress.declare([new])

        async def places(positions: Sequence[int]) -> list[RowLocation]:
            return [(position, 2, f"k{position}") for position in positions]

        assert await keeper.progress.reorder(held.subscription, new, places)
        with pytest.raises(StaleLane):
            await owner.swap(ExchangeWrite(Cursor(10), (), AttemptTally(1)))
        [last] = await keeper.progress.take(held.subscription, [2])
        found = await Owner(keeper.progress, last).ask(keys=["k3", "k5"])
        assert held_positions(found) == {"k3": ([3], False), "k5": ([5], False)}


def passed(position: int, succeeded: int = 1) -> ExchangeWrite:
    """A write of a cursor and nothing else."""
    return ExchangeWrite(Cursor(position), (), AttemptTally(succeeded))


class TestCursorsOfSeveralSubscriptions:
    async def held(self, keeper: Keeper, *names: str, lanes: int = 2) -> list[LaneGrant]:
        """All lanes of each of these."""
        opened = await keeper.progress.declare([definition(name, lanes=lanes) for name in names])
        return [held for one in opened for held in await keeper.progress.take(one.id, range(lanes))]

    async def test_each_is_written(self, keeper: Keeper) -> None:
        held = await self.held(keeper, "a", "b", "c")
        written = await keeper.progress.write([(one, passed(at)) for at, one in enumerate(held, start=1)])
        assert [one.held for one in written if one] == [replace(one, revision=one.revision + 1) for one in held]
        found = [
            again.state.cursor
            for one in held
            for again in await keeper.progress.take(one.subscription, [one.lane])
        ]
        assert found == [Cursor(at) for at in range(1, 7)]

    async def test_one_that_is_stale_is_refused_alone(self, keeper: Keeper) -> None:
        held = await self.held(keeper, "a", "b")
        other = await keeper.another()
        await other.take(held[1].subscription, [1])
        written = await keeper.progress.write([(one, passed(7)) for one in held])
        assert [one is not None for one in written] == [True, False, True, True]
        assert await keeper.progress.write([(one.held, passed(8)) for one in written if one]) != []

    async def test_of_somebody_else_in_the_same_place(self, keeper: Keeper) -> None:
        [held, _] = await self.held(keeper, "a")
        assert await keeper.progress.write([(replace(held, epoch=held.epoch + 1), passed(7))]) == [None]

    async def test_an_owner_and_the_one_before_it(self, keeper: Keeper) -> None:
        """Whoever lost a lane learns nothing of its new owner's claim."""
        [old, _] = await self.held(keeper, "a")
        [new] = await (await keeper.another()).take(old.subscription, [0])
        for order in (1, -1):
            lanes = [old, new][::order]
            written = await keeper.progress.write([(held, passed(7)) for held in lanes])
            assert [one is not None for one in written] == [held is new for held in lanes]
            [new] = [one.held for one in written if one]

    async def test_each_is_told_of_its_own(self, keeper: Keeper) -> None:
        """What is stored beside, failures in a row, and why it stands still."""
        a, _, b, b_other, c, _ = await self.held(keeper, "a", "b", "c")
        failing = Owner(keeper.progress, a)
        await failing.add(row(3), row(4, "retrying", due=9e9), failed=STALL_AFTER)
        parked = Owner(keeper.progress, b)
        await parked.add(row(5, "parked"), failed=1)
        lanes = [(one, passed(1, 0)) for one in (failing.held, parked.held, b_other)] + [(c, passed(1))]
        answers = [one.answer for one in await keeper.progress.write(lanes) if one]
        assert [answer.rows for answer in answers] == [True, True, False, False]
        assert [answer.counts for answer in answers] == [RowCounts(1, 1, 0), RowCounts(), RowCounts(), RowCounts()]
        assert [answer.streak for answer in answers] == [STALL_AFTER, 1, 1, 0]
        assert [answer.stalled is not None for answer in answers] == [True, False, False, False]

    async def test_a_success_ends_the_failures_of_its_own(self, keeper: Keeper) -> None:
        a, _, b, _ = await self.held(keeper, "a", "b")
        one, other = Owner(keeper.progress, a), Owner(keeper.progress, b)
        for owner in (one, other):
            await owner.add(row(3, "parked"), failed=2)
        written = await keeper.progress.write([(one.held, passed(5)), (other.held, passed(5, 0))])
        assert [each.answer.streak for each in written if each] == [0, 2]
        again = await keeper.progress.write([(each.held, passed(6, 0)) for each in written if each])
        assert [each.answer.streak for each in again if each] == [0, 2]

    async def test_two_who_write_the_same_lanes(self, keeper: Keeper) -> None:
        """One of them is stale, and neither waits for ever for the other."""
        held = await self.held(keeper, *"abcd", lanes=25)
        other = await keeper.another()
        for position in range(1, 9):
            forwards = [(one, passed(position)) for one in held]
            mine, theirs = await asyncio.gather(keeper.progress.write(forwards), other.write(forwards[::-1]))
            both = list(zip(mine, theirs[::-1], strict=True))
            assert all((one is None) is not (another is None) for one, another in both)
            held = [written.held for pair in both for written in pair if written]


class TestOwnership:
    async def test_epochs_are_never_the_same(self, keeper: Keeper) -> None:
        [one, two] = await keeper.progress.declare([definition("a"), definition("b")])
        held = [
            *await keeper.progress.take(one.id, [0, 1]),
            *await keeper.progress.take(two.id, [0]),
            *await keeper.progress.take(one.id, [0]),
        ]
        epochs = [one.epoch for one in held]
        assert sorted(set(epochs)) == epochs
        assert held[3].previous == held[0].epoch
        assert held[3].revision == held[0].revision + 1

    async def test_what_is_not_there_cannot_be_taken(self, keeper: Keeper) -> None:
        held = await taken(keeper.progress)
        assert await keeper.progress.take(held.subscription, [2, 99]) == []
        assert await keeper.progress.take(12345, [0]) == []

    async def test_each_write_is_the_next_revision(self, owner: Owner) -> None:
        before = owner.held.revision
        for position in range(200):
            await owner.swap(ExchangeWrite(Cursor(position), (), AttemptTally(1)))
        assert owner.held.revision == before + 200
        await owner.ask(due=True)
        assert owner.held.revision == before + 200

    async def test_what_was_written_is_found(self, owner: Owner) -> None:
        cursor = Cursor(2**62, ((2**62 + 2, 2**62 + 9), (2**62 + 11, 2**62 + 11)))
        await owner.swap(ExchangeWrite(cursor, (), AttemptTally(1)))
        [held] = await owner.progress.take(owner.held.subscription, [0])
        assert held.state.cursor == cursor

    async def test_after_another_took_the_lane_nothing_can_be_written(self, keeper: Keeper, owner: Owner) -> None:
        other = await keeper.another()
        await owner.add(row(3))
        [held] = await other.take(owner.held.subscription, [0])
        with pytest.raises(StaleLane):
            await owner.swap(ExchangeWrite(Cursor(9), (), AttemptTally(1)))
        with pytest.raises(StaleLane):
            await owner.move(RowChange(3, 1, None), RowChange(4, None, row(4)), failed=1)
        with pytest.raises(StaleLane):
            await owner.ask(keys=["k"])
        with pytest.raises(StaleLane):
            await owner.progress.release(owner.held, None)
        new = Owner(other, held)
        answer = await new.ask(keys=["k"])
        assert (held_positions(answer), answer.streak) == ({"k": ([3], False)}, 0)

    async def test_an_owner_that_comes_back_after_hundreds_of_revisions(self, owner: Owner) -> None:
        """Old revisions are gone by then; what fenced it is not."""
        [held] = await owner.progress.take(owner.held.subscription, [0])
        new = Owner(owner.progress, held)
        for position in range(300):
            await new.swap(ExchangeWrite(Cursor(position), (), AttemptTally(1)))
        with pytest.raises(StaleLane):
            await owner.swap(ExchangeWrite(Cursor(9), (), AttemptTally(1)))
        with pytest.raises(StaleLane):
            await owner.add(row(4))
        assert not (await new.ask(due=True)).rows

    async def test_two_writes_of_one_revision(self, owner: Owner) -> None:
        """After an unknown outcome the lane is taken again; who goes on as if nothing had happened is refused."""
        before = owner.held
        await owner.swap(ExchangeWrite(Cursor(5), (), AttemptTally(1)))
        again = Owner(owner.progress, before)
        with pytest.raises(StaleLane):
            await again.swap(ExchangeWrite(Cursor(5), (), AttemptTally(1)))
        with pytest.raises(StaleLane):
            await again.add(row(7))
        await owner.swap(ExchangeWrite(Cursor(6), (), AttemptTally(1)))

    async def test_released_or_vanished(self, owner: Owner) -> None:
        assert not owner.held.state.unclean
        await owner.progress.release(owner.held, None)
        [second] = await owner.progress.take(owner.held.subscription, [0])
        assert not second.state.unclean
        [third] = await owner.progress.take(owner.held.subscription, [0])
        assert third.state.unclean
        owner = Owner(owner.progress, third)
        await owner.swap(ExchangeWrite(Cursor(5), (), AttemptTally(1)))
        [fourth] = await owner.progress.take(owner.held.subscription, [0])
        assert fourth.state.unclean

    async def test_a_release_writes_what_is_left(self, owner: Owner) -> None:
        await owner.add(row(3, "running"), row(4))
        write = ExchangeWrite(
            Cursor(9),
            (RowChange(3, 1, row(3, "retrying", due=5.0, revision=2)), RowChange(4, 7, None)),
            AttemptTally(0, 2),
        )
        await owner.progress.release(owner.held, Exchange(0.0, write, None))
        with pytest.raises(StaleLane):
            await owner.swap(write)
        [held] = await owner.progress.take(owner.held.subscription, [0])
        state = held.state
        assert (state.cursor, state.unclean, state.rows, state.running) == (Cursor(9), False, True, [])
        assert (state.counts, state.streak, state.stalled) == (RowCounts(1, 1, 0), 2, None)

    async def test_a_lane_is_told_what_is_stored_of_it(self, keeper: Keeper, owner: Owner) -> None:
        """Running rows are those of an owner that vanished."""
        rows = [row(3, "running", attempts=2, total=5, key=None), row(1, "running"), row(2, "skipped")]
        await owner.add(*rows, failed=2)
        [one] = await keeper.progress.take(owner.held.subscription, [0])
        assert [loaded.row for loaded in one.state.running] == [rows[1], rows[0]]
        assert (one.state.rows, one.state.streak) == (True, 2)
        [two] = await keeper.progress.take(owner.held.subscription, [1])
        assert (two.state.rows, two.state.running, two.state.counts) == (False, [], RowCounts())
        assert abs(one.state.now - await keeper.progress.now()) < 60

    async def test_a_skipped_row_alone_is_no_row(self, keeper: Keeper, owner: Owner) -> None:
        assert not (await owner.add(row(2, "skipped"))).rows
        [held] = await keeper.progress.take(owner.held.subscription, [0])
        assert not held.state.rows

    async def test_time(self, keeper: Keeper, owner: Owner) -> None:
        before = await keeper.progress.now()
        await keeper.advance(100)
        exchange = Exchange[RowOnly](0.0, ExchangeWrite(Cursor(1), (), AttemptTally(1)), None)
        plain = await keeper.progress.exchange(owner.held, exchange, stall_after=9, on_park="block")
        asked = await keeper.progress.exchange(
            plain.held, Exchange(0.0, None, asking(due=True)), stall_after=9, on_park="block"
        )
        assert before + 100 <= plain.now <= asked.now <= await keeper.progress.now() < before + 160


class TestMoves:
    async def test_a_row_is_given_back_as_it_was(self, owner: Owner) -> None:
        full = DeliveryRow(
            position=2**60,
            key="k 🙂",
            state=State.RETRYING,
            since=1_700_000_000.123456,
            attempts=3,
            total=9,
            due=1999.25,
            route="r",
            suspicion=Suspicion.CERTAIN,
            reason="it was not to be",
            error="Traceback…\n\ttab",
            revision=4,
        )
        await owner.add(full, row(5, key=None))
        answer = await owner.ask(keys=["k 🙂"], due=True)
        assert answer.held["k 🙂"].rows[0].row == full
        assert [one.row for one in answer.due] == [full]

    async def test_each_says_whether_it_found_its_revision(self, owner: Owner) -> None:
        assert (await owner.add(row(1), row(2), row(3))).moved == [True, True, True]
        answer = await owner.move(
            RowChange(1, 1, row(1, "parked", revision=2)),
            RowChange(2, 5, None),
            RowChange(3, 1, None),
            RowChange(4, 1, row(4, revision=2)),
            RowChange(1_000, None, row(1_000, "unrouted", revision=1)),
        )
        assert list(answer.moved) == [True, False, True, False, True]
        again = await owner.add(row(1))
        assert (list(again.moved), again.counts) == ([False], RowCounts(1, 0, 1))

    async def test_a_person_comes_first(self, keeper: Keeper, owner: Owner) -> None:
        await owner.add(row(1, "parked"), row(2, "parked"))
        await keeper.person(owner.held.subscription, 1, State.RETRYING)
        answer = await owner.move(RowChange(1, 1, None), RowChange(2, 1, None))
        assert (list(answer.moved), answer.counts.retrying) == ([False, True], 1)
        [loaded] = (await owner.ask(due=True, now=await keeper.progress.now() + 1)).due
        assert (loaded.row.revision, loaded.row.state) == (2, State.RETRYING)

    async def test_what_is_required_is_done_or_nothing_is(self, keeper: Keeper, owner: Owner) -> None:
        await owner.add(row(1, "running"), row(2, "running"))
        await keeper.person(owner.held.subscription, 1, State.SKIPPED)
        moves = (RowChange(2, 1, None), RowChange(1, 1, None, required=True), RowChange(3, None, row(3)))
        before = owner.held.revision
        with pytest.raises(RolledBack):
            await owner.move(*moves, failed=3)
        assert owner.held.revision == before
        answer = await owner.move(RowChange(2, 1, None, required=True))
        assert (list(answer.moved), answer.streak, answer.counts) == ([True], 0, RowCounts())

    async def test_questions_see_what_was_written_with_them(self, owner: Owner) -> None:
        await owner.add(row(1, "retrying", due=1500.0))
        write = ExchangeWrite(
            Cursor(9), (RowChange(1, 1, None), RowChange(2, None, row(2, "retrying", due=1600.0))), AttemptTally()
        )
        answer = await owner.swap(write, asking(due=True, keys=["k"]))
        assert (positions(answer.due), held_positions(answer)) == ([2], {"k": ([2], False)})

    async def test_long_and_impossible_texts_are_cut(self, owner: Owner) -> None:
        texts = {"reason": "no\0thing" * 5000, "error": "é" * 5000 + "\udc80"}
        await owner.add(row(1, **texts), row(2, reason="\udc80", error="\0"))
        one, two = (loaded.row for loaded in (await owner.ask(keys=["k"])).held["k"].rows)
        assert one.reason == ("nothing" * 5000)[:8192]
        assert one.error == "é" * 4096
        assert (two.reason, two.error) == ("?", "")

    @pytest.mark.parametrize("due", [1e30, float("inf")])
    async def test_a_time_that_is_too_far_ahead(self, owner: Owner, due: float) -> None:
        await owner.add(row(1, "retrying", due=due))
        answer = await owner.ask(due=True)
        assert answer.next_due is not None
        assert (positions(answer.due), answer.next_due > 1e10) == ([], True)


class TestQuestions:
    async def test_held_keys(self, owner: Owner) -> None:
        await owner.add(row(1, "parked", "a"), row(2, "waiting", "a"), row(3, "waiting", "a"))
        await owner.add(row(4, "skipped", "b"), row(5, "running", "c"), row(6, key=None))
        answer = await owner.ask(keys=["a", "b", "c", "d"], per_key=2)
        assert held_positions(answer) == {"a": ([1, 2], True), "c": ([5], False)}
        owner.on_park = "continue"
        answer = await owner.ask(keys=["a", "b", "c", "d"], per_key=2)
        assert held_positions(answer) == {"a": ([2, 3], False), "c": ([5], False)}

    async def test_the_keys_of_another_lane_are_not_held(self, keeper: Keeper, owner: Owner) -> None:
        [held] = await keeper.progress.take(owner.held.subscription, [1])
        other = Owner(keeper.progress, held)
        await other.add(row(1, "retrying", due=5.0), row(2, "unrouted"))
        answer = await owner.ask(keys=["k"], due=True, heads_after="", unrouted_after=0, unrouted_limit=5)
        assert (answer.held, answer.due, answer.unrouted, answer.rows) == ({}, [], [], False)
        assert answer.counts == RowCounts(0, 1, 1)
        await owner.swap(ExchangeWrite(Cursor(1), (), AttemptTally(1)))
        assert (await other.ask(keys=["k"])).rows

    async def test_what_is_due(self, owner: Owner) -> None:
        await owner.add(
            row(1, "retrying", "a", due=1999.0),
            row(2, "retrying", "b", due=2000.0),
            row(3, "retrying", "c", due=2000.5),
            row(4, "skipped", "d", due=5.0),
            row(5, "waiting", "a"),
            row(6, "retrying", None, due=7.0),
            row(7, "retrying", "e", due=2100.0),
        )
        answer = await owner.ask(due=True)
        assert positions(answer.due) == [1, 2, 4, 6]
        assert answer.next_due == 2000.5
        assert held_positions(answer) == {"a": ([1], True), "b": ([2], False)}
        assert (await owner.ask(keys=["b"])).next_due is None

    async def test_the_earliest_of_many_that_are_due(self, owner: Owner) -> None:
        await owner.add(*(row(n, "retrying", None, due=1000.0 - n) for n in range(1, 8)))
        answer = await owner.ask(due=True, limit=3)
        assert (positions(answer.due), answer.next_due) == ([5, 6, 7], 996.0)
        nothing = await owner.ask(due=True, limit=0)
        assert (positions(nothing.due), nothing.next_due) == ([], 993.0)

    async def test_what_the_lane_has_in_memory_is_not_due(self, owner: Owner) -> None:
        await owner.add(*(row(n, "retrying", None, due=1000.0 + n) for n in range(1, 5)))
        answer = await owner.ask(due=True, limit=1, holding={1: 1, 2: 7, 3: 1})
        assert (positions(answer.due), answer.next_due) == ([2], 1004.0)

    async def test_a_key_that_is_due_and_asked_for(self, owner: Owner) -> None:
        await owner.add(row(1, "retrying", due=1999.0), row(2), row(3))
        answer = await owner.ask(due=True, keys=["k"], per_key=2)
        assert held_positions(answer) == {"k": ([1, 2], True)}

    async def test_heads(self, owner: Owner) -> None:
        await owner.add(
            row(1, "parked", "a"), row(2, "waiting", "a"), row(3, "waiting", "b"), row(4, "waiting", "b")
        )
        await owner.add(row(5, "retrying", "c", due=9999.0), row(6, "waiting", "c"), row(7, "skipped", "d"))
        await owner.add(row(8, "waiting", "d"), row(9, "waiting", "Ω"), row(10, "waiting", None))
        answer = await owner.ask(heads_after="")
        assert held_positions(answer) == {"b": ([3], True), "d": ([8], False), "Ω": ([9], False)}
        assert answer.heads_end is None
        some = await owner.ask(heads_after="", limit=2)
        assert (list(some.held), some.heads_end) == (["b", "d"], "d")
        rest = await owner.ask(heads_after="d", limit=2)
        assert (list(rest.held), rest.heads_end) == (["Ω"], None)
        owner.on_park = "continue"
        assert "a" in (await owner.ask(heads_after="")).held

    async def test_unrouted(self, owner: Owner) -> None:
        await owner.add(*(row(n, "unrouted", None, route="r" if n % 2 else None) for n in range(1, 8)))
        await owner.add(row(8, "unrouted", None, route="s"), row(9, "waiting", None, route="r"))
        answer = await owner.ask(unrouted_after=2, unrouted_limit=3, holding={4: 1, 5: 2})
        assert (positions(answer.unrouted), answer.unrouted_end) == ([3, 5, 6], 6)
        answer = await owner.ask(unrouted_after=6, unrouted_limit=3)
        assert (positions(answer.unrouted), answer.unrouted_end) == ([7, 8], None)
        answer = await owner.ask(unrouted_after=0, unrouted_limit=3, routes=frozenset({"r", "t"}))
        assert (positions(answer.unrouted), answer.unrouted_end) == ([1, 3, 5], 5)
        answer = await owner.ask(unrouted_after=5, unrouted_limit=3, routes=frozenset({"r", "s"}))
        assert (positions(answer.unrouted), answer.unrouted_end) == ([7, 8], None)
        assert positions((await owner.ask(unrouted_after=0, unrouted_limit=3, routes=frozenset())).unrouted) == []

    async def test_messages_that_are_too_large_together(self, owner: Owner) -> None:
        """The first is told, and the first of each key that was asked for; the rest later."""
        await owner.add(*(row(n, "waiting", "a", size=40) for n in range(1, 6)), row(6, "waiting", "b", size=500))
        await owner.add(row(7, "retrying", None, due=5.0, size=30), row(8, "retrying", None, due=4.0, size=30))
        await owner.add(row(9, "unrouted", None, size=30), row(10, "unrouted", None, size=30))
        answer = await owner.ask(keys=["a", "b"], due=True, bytes=100)
        assert held_positions(answer) == {"a": ([1, 2], True), "b": ([6], False)}
        assert (positions(answer.due), answer.next_due) == ([], 4.0)
        answer = await owner.ask(due=True, bytes=30)
        assert (positions(answer.due), answer.next_due) == ([8], 5.0)
        assert [one.message.size for one in answer.due] == [30]
        answer = await owner.ask(unrouted_after=0, unrouted_limit=5, bytes=0)
        assert (positions(answer.unrouted), answer.unrouted_end) == ([9], 9)
        answer = await owner.ask(heads_after="", bytes=50, due=True)
        assert (positions(answer.due), list(answer.held), answer.heads_end) == ([8], [], "")
        answer = await owner.ask(heads_after="", bytes=50)
        assert (list(answer.held), answer.heads_end) == (["a"], "a")

    async def test_counts_are_of_all_lanes(self, keeper: Keeper, owner: Owner) -> None:
        [held] = await keeper.progress.take(owner.held.subscription, [1])
        other = Owner(keeper.progress, held)
        await owner.add(row(1), row(2, "retrying"), row(3, "unrouted"), row(4, "parked"), row(5, "skipped"))
        answer = await other.add(row(6), row(7), row(8, "running"))
        assert answer.counts == RowCounts(3, 1, 1)
        answer = await owner.move(RowChange(1, 1, row(1, "unrouted", revision=2)), RowChange(2, 1, None))
        assert answer.counts == RowCounts(2, 0, 2)
        assert (await owner.swap(ExchangeWrite(Cursor(1), (), AttemptTally(1)))).counts == RowCounts(2, 0, 2)

    async def test_counts_after_many_exchanges(self, owner: Owner) -> None:
        for n in range(200):
            answer = await owner.add(row(n, "waiting" if n % 3 else "retrying"))
        assert answer.counts == RowCounts(133, 67, 0)
        answer = await owner.move(*(RowChange(n, 1, None) for n in range(199)))
        assert answer.counts == RowCounts(1, 0, 0)


class TestBreaker:
    @pytest.mark.parametrize("stall_after", [1, 3, 1200])
    async def test_it_stalls_and_recovers_as_dispatch_says(self, owner: Owner, stall_after: int) -> None:
        streak, stalled, retrying = 0, None, 0
        steps = [(0, 1), (0, 0), (0, 2), (1, 1), (1, 0), (0, 1150), (0, 70), (2, 3), (5, 0), (1, 0)]
        for number, (succeeded, failed) in enumerate(steps):
            tally = AttemptTally(succeeded, failed)
            if failed:
                retrying += 1
                answer = await owner.add(
                    row(number, "retrying"), succeeded=succeeded, failed=failed, stall_after=stall_after
                )
            else:
                answer = await owner.swap(ExchangeWrite(Cursor(number), (), tally), stall_after=stall_after)
            streak, stalled = breaker_state_after(streak, stalled, tally, retrying, stall_after)
            assert (answer.streak, answer.stalled) == (streak, stalled)

    async def test_it_is_of_all_lanes(self, keeper: Keeper, owner: Owner) -> None:
        await owner.add(row(1, "retrying"), failed=3, stall_after=2)
        [held] = await keeper.progress.take(owner.held.subscription, [1])
        assert (held.state.streak, held.state.stalled) == (3, "the last 3 attempts failed")
        other = Owner(keeper.progress, held)
        idle = await other.swap(ExchangeWrite(Cursor(1), (), AttemptTally()))
        assert (idle.streak, idle.stalled) == (3, "the last 3 attempts failed")
        good = await other.swap(ExchangeWrite(Cursor(2), (), AttemptTally(1)))
        assert (good.streak, good.stalled) == (0, None)
        answer = await owner.ask(due=True)
        assert (answer.streak, answer.stalled) == (0, None)

    async def test_more_are_retrying_than_may_be(self, owner: Owner) -> None:
        rows = [row(n, "retrying", None) for n in range(STALL_AFTER + 1)]
        answer = await owner.add(*rows, failed=1)
        assert answer.stalled == "1,001 messages are retrying, more than 1,000"


class TestStandings:
    async def test_all_by_their_addresses(self, keeper: Keeper) -> None:
        await keeper.progress.declare([definition("b"), definition("a"), definition("a", group="f", lanes=1)])
        found = await keeper.progress.standings()
        addresses = [(one.group, one.name, len(one.lanes)) for one in found]
        assert addresses == [("f", "a", 1), ("g", "a", 2), ("g", "b", 2)]
        [one] = await keeper.progress.standings("g", "b")
        assert one == found[2]
        assert await keeper.progress.standings("f", "b") == []

    async def test_what_is_stored_of_lanes(self, keeper: Keeper) -> None:
        held = await taken(keeper.progress, start=Cursor(5))
        ahead = Cursor(70, ((72, 75), (90, 90)))
        owner = Owner(keeper.progress, held)
        await owner.swap(ExchangeWrite(ahead, (), AttemptTally(1)))
        [one] = await (await keeper.another()).standings("g", "s")
        assert [(lane.number, lane.cursor, lane.held) for lane in one.lanes] == [
            (0, ahead, True),
            (1, Cursor(5), False),
        ]
        await keeper.progress.release(owner.held, None)
        [one] = await keeper.progress.standings()
        assert [lane.held for lane in one.lanes] == [False, False]

    async def test_what_is_counted(self, keeper: Keeper, owner: Owner) -> None:
        states = ["parked", "parked", "waiting", "retrying", "unrouted", "parked"]
        await owner.add(*(row(at, state) for at, state in enumerate(states, 1)), failed=1)
        [one] = await keeper.progress.standings()
        assert (one.waiting, one.retrying, one.unrouted, one.parked) == (1, 1, 1, 3)
        assert (one.status, one.stalled) == ("running", None)
        await keeper.person(owner.held.subscription, 1, State.RETRYING)
        await owner.move(RowChange(2, 1, None), RowChange(3, 1, None), failed=STALL_AFTER)
        [one] = await keeper.progress.standings()
        assert (one.waiting, one.retrying, one.unrouted, one.parked) == (0, 2, 1, 1)
        assert one.stalled is not None
