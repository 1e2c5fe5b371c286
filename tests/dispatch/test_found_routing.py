"""Schedules with consumers that the simulation found, each of which broke something once."""

from dispatch.simulation.events import Change, Join, Kill, Leave, Lose, RetryRow, SkipRow, Start, Take, Wish
from dispatch.simulation.operations import (
    Ack,
    Append,
    Commit,
    Fill,
    GiveBack,
    Learn,
    Make,
    Next,
    Park,
    Pass,
    Pump,
    Retry,
    Swap,
)
from dispatch.simulation.replay import replay
from dispatch.simulation.setup import Setup


def test_a_group_that_is_behind_does_not_wait_for_room_that_it_takes_itself() -> None:
    replay(
        Setup(strategy="round_robin", window=1),
        [Append(), Join(wishes=(Wish(filter=6, bytes=3),)), Pump(), Append()],
    )


def test_a_group_that_is_behind_does_not_wait_for_room_that_others_take() -> None:
    replay(
        Setup(strategy="dispatch_to_single", window=2),
        [
            Join(wishes=(Wish(filter=4, capacity=1, bytes=100),)),
            Append(key=4, number=1),
            Append(count=2, key=3),
            Fill(),
            Next(),
            Swap(),
        ],
    )


def test_a_row_that_is_set_aside_while_it_is_written_gets_the_next_revision() -> None:
    replay(
        Setup(ordered=False, strategy="round_robin", track_all=True, killed=False),
        [
            Join(),
            Join(name=1, wishes=(Wish(filter=6, capacity=1, bytes=100),)),
            Append(),
            Fill(),
            Next(),
            Make(),
            Lose(),
            Next(),
        ],
    )


def test_a_suspect_without_room_comes_back() -> None:
    replay(
        Setup(strategy="round_robin", track_all=True, max_unrouted=1),
        [Append(count=2), Join(), Fill(), Next(), Swap()],
    )


def test_two_suspects_come_back_one_after_the_other() -> None:
    replay(
        Setup(strategy="round_robin", max_unrouted=1), [Append(count=2), Start(), Kill(), Take(), Join(), Pump()]
    )


def test_a_scan_does_not_load_for_room_that_is_taken_by_what_is_queued() -> None:
    replay(
        Setup(ordered=False, strategy="pinned_by_correlation", window=1, stall_after=1, killed=False),
        [
            Append(count=7),
            Change(),
            Join(wishes=(Wish(filter=1, priority=1, capacity=10, bytes=100),)),
            Fill(),
            Next(),
            Park(),
        ],
    )


def test_who_joins_while_the_first_unrouted_rows_are_written_gets_them() -> None:
    replay(
        Setup(strategy="pinned_by_correlation"),
        [
            Append(),
            Fill(),
            Join(wishes=(Wish(filter=1, priority=1, bytes=100),)),
            Next(),
            Make(),
            Join(),
            Next(),
            Pump(),
        ],
    )


def test_what_waits_for_room_is_matched_with_the_routes_that_there_are() -> None:
    replay(
        Setup(strategy="round_robin", window=1),
        [
            Append(count=4, number=3),
            Join(wishes=(Wish(filter=4, bytes=0),)),
            Join(name=1),
            Pump(),
            Join(
                name=1,
                wishes=(Wish(filter=3, priority=1, capacity=5, bytes=100), Wish(filter=1, capacity=0, bytes=3)),
            ),
            Make(),
        ],
    )


def test_what_is_queued_for_a_group_with_room_goes_out_at_once() -> None:
    replay(
        Setup(strategy="pinned", window=2),
        [
            Append(count=7, number=4),
            Join(),
            Join(name=1, wishes=(Wish(filter=5, bytes=100), Wish(filter=1, capacity=1, bytes=0))),
            Leave(),
            Fill(),
            Next(),
            Swap(),
            Fill(),
            Ack(),
            Swap(),
            Next(),
            Make(),
            Commit(),
            Learn(),
            Join(wishes=(Wish(filter=6, bytes=100),)),
            Pump(),
        ],
    )


def test_a_suspect_that_was_given_back_and_finds_no_room_has_not_been_tried() -> None:
    replay(
        Setup(ordered=False, strategy="pinned", killed=False),
        [
            Append(),
            Start(),
            Kill(),
            Take(),
            Join(),
            Pump(),
            Start(),
            Kill(),
            Take(),
            Join(),
            Pump(),
            Join(wishes=(Wish(capacity=5, bytes=0),)),
            GiveBack(),
            Next(),
        ],
    )


def test_what_was_unrouted_comes_back_after_routes_came_and_went() -> None:
    replay(
        Setup(strategy="dispatch_to_single"),
        [
            Append(number=3),
            Fill(),
            Join(wishes=(Wish(filter=1, capacity=5, bytes=100),)),
            Swap(),
            Join(wishes=(Wish(filter=6, capacity=1, bytes=0), Wish(filter=5, capacity=10, bytes=100))),
            Join(name=1),
            Swap(),
            Leave(),
            Pump(),
        ],
    )


def test_what_was_unrouted_comes_back_when_a_paused_route_goes_on() -> None:
    replay(
        Setup(strategy="pinned"),
        [
            Append(),
            Join(wishes=(Wish(filter=5, priority=1, capacity=0, bytes=100),)),
            Fill(),
            Make(),
            Join(),
            Join(name=2, wishes=(Wish(priority=1, capacity=10, bytes=0),)),
            Swap(),
            Swap(),
            Join(name=2),
            Pump(),
        ],
    )


def test_what_was_unrouted_comes_back_in_order() -> None:
    replay(
        Setup(ordered=False, strategy="dispatch_to_single"),
        [
            Join(wishes=(Wish(filter=1, capacity=0, bytes=100),)),
            Append(count=2),
            Fill(),
            Make(),
            Leave(),
            Join(name=1, wishes=(Wish(filter=4, capacity=1, bytes=0),)),
            Join(name=2, wishes=(Wish(filter=2, capacity=0, bytes=100),)),
            Join(),
            Pump(),
            Join(name=1),
            Pump(),
        ],
    )


def test_rows_that_consumers_have_do_not_keep_others_from_being_looked_at() -> None:
    replay(
        Setup(keys=3, strategy="dispatch_to_single", window=5, max_waiting=1, kept=True),
        [
            Append(count=5),
            Join(wishes=(Wish(filter=6, priority=1, bytes=100),)),
            Fill(),
            Append(count=2),
            Swap(),
            SkipRow(),
            Append(),
            Append(),
            SkipRow(which=1),
        ],
    )


def test_who_joins_a_stalled_subscription_gets_what_is_tried_next() -> None:
    replay(
        Setup(ordered=False, strategy="pinned", window=1, stall_after=1, kept=True),
        [
            Join(
                wishes=(
                    Wish(filter=6, priority=1, capacity=5, bytes=3),
                    Wish(filter=4, priority=1, capacity=1, bytes=100),
                )
            ),
            Append(),
            Append(),
            Pump(),
            Lose(),
            Join(wishes=(Wish(filter=3, capacity=0, bytes=100), Wish(filter=3, capacity=1, bytes=100))),
            Swap(),
        ],
    )


def test_what_was_set_aside_and_may_get_no_row_goes_out_when_there_is_room() -> None:
    replay(
        Setup(strategy="dispatch_to_single", window=2, timeout=1.0, max_unrouted=1),
        [
            Append(count=4, number=1),
            Join(wishes=(Wish(filter=5, capacity=1, bytes=100), Wish(filter=2, bytes=100))),
            Pump(),
            Pass(),
            Pump(),
        ],
    )


def test_what_a_scan_finds_for_a_consumer_that_is_lost_goes_to_others() -> None:
    replay(
        Setup(strategy="pinned_by_correlation"),
        [
            Append(count=4),
            Join(name=2, wishes=(Wish(filter=4, bytes=3),)),
            Fill(),
            Next(),
            Swap(),
            Join(name=2),
            Join(wishes=(Wish(filter=2, capacity=1, bytes=100),)),
            Pump(),
            Retry(),
            Make(),
            Lose(),
            Pump(),
        ],
    )


def test_what_a_person_retries_starts_its_count_anew_though_nobody_takes_it() -> None:
    replay(
        Setup(ordered=False, strategy="pinned_by_correlation"),
        [
            Append(),
            Join(),
            Fill(),
            Next(),
            Retry(after=0.0),
            Swap(),
            Make(),
            Commit(),
            RetryRow(),
            Learn(),
            Make(),
            Join(wishes=(Wish(filter=5, bytes=100), Wish(filter=5, priority=1, bytes=0))),
            Next(),
            Pump(),
        ],
    )


def test_what_is_left_goes_out_when_the_last_suspect_was_set_aside() -> None:
    replay(
        Setup(strategy="round_robin", track_all=True),
        [
            Append(count=4, number=4),
            Join(),
            Fill(),
            Next(),
            Swap(),
            Kill(),
            Start(),
            Take(),
            Fill(),
            Join(wishes=(Wish(filter=3, capacity=1, bytes=100),)),
            Swap(),
            Pump(lazy=True),
        ],
    )


def test_a_skip_that_is_told_of_late_frees_the_key() -> None:
    replay(
        Setup(keys=2, strategy="pinned", max_waiting=1, kept=True),
        [
            Append(count=4, number=2),
            Join(wishes=(Wish(filter=1, capacity=5, bytes=100),)),
            Pump(),
            Join(),
            SkipRow(which=1, poke=False),
            Pump(),
            Ack(),
            Next(),
            Ack(),
            Swap(),
        ],
    )


def test_a_suspect_that_was_given_back_and_is_loaded_again_has_not_been_tried() -> None:
    replay(
        Setup(strategy="pinned", killed=False),
        [
            Append(),
            Start(),
            Kill(),
            Take(),
            Join(),
            Pump(),
            Start(),
            Kill(),
            Take(),
            Join(),
            Pump(),
            Leave(),
            Change(blocks=False),
            Make(),
        ],
    )


def test_a_release_ends_what_came_back_though_no_more_may_be_unrouted() -> None:
    replay(
        Setup(ordered=False, strategy="pinned_by_correlation", window=1, max_unrouted=1, killed=False),
        [
            Append(count=3),
            Start(),
            Kill(),
            Take(),
            Join(),
            Join(name=1, wishes=(Wish(filter=4, capacity=1, bytes=100),)),
            Pump(),
            Leave(),
            Pump(),
        ],
    )


def test_what_there_is_no_room_for_as_unrouted_is_not_overtaken_when_parked_ones_come_to_hold_their_keys() -> None:
    replay(
        Setup(keys=2, strategy="round_robin", on_park="continue", max_unrouted=1),
        [
            Join(wishes=(Wish(filter=1, capacity=5),)),
            Append(key=1, number=2),
            Append(key=0, number=1),
            Append(key=0, number=2),
            Append(key=0, number=1),
            Append(key=0, number=1),
            Fill(),
            Next(),
            Swap(),
            Park(),
            Next(),
            Change(blocks=True),
            Swap(),
        ],
    )
