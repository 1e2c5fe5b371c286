"""Schedules that the simulation found, each of which broke something once."""

from dispatch.simulation.events import Change, Join, Kill, Leave, Lose, RetryRow, SkipRow, Start, Take, Wish
from dispatch.simulation.operations import (
    Ack,
    Append,
    Commit,
    Expire,
    Fill,
    GiveBack,
    Learn,
    Make,
    Next,
    Park,
    Pass,
    Pump,
    Retry,
    Stop,
    Swap,
)
from dispatch.simulation.replay import replay
from dispatch.simulation.setup import Setup


def test_a_transaction_does_not_delete_what_a_person_skipped() -> None:
    replay(Setup(), [Kill(), Append(), Start(), Take(), Pump(), SkipRow(), Pump(), Swap(commits=1)])


def test_a_suspect_does_not_overtake_a_message_that_a_person_retried() -> None:
    replay(Setup(on_park="continue"), [Kill(), Start(), Take(), Append(count=8), Pump(), Park(), Pump()])


def test_a_delivery_does_not_time_out_while_its_transaction_commits() -> None:
    replay(Setup(timeout=1.0), [Append(), Pump(), Make(commits=1), Pass(), Expire(), Pump()])


def test_what_was_promised_and_then_skipped_is_not_handed_out() -> None:
    replay(Setup(track_all=True), [Append(), Fill(), Next(), Swap(), SkipRow(), Pump()])


def test_rows_and_messages_together_stay_within_the_window() -> None:
    replay(
        Setup(window=3),
        [Append(count=8), Fill(), Next(), Retry(count=2, after=0.0), Swap(commits=1), Make(), Fill(), Swap()],
    )


def test_a_due_row_behind_a_due_row_is_not_loaded_with_an_old_revision() -> None:
    replay(
        Setup(on_park="continue", window=20),
        [Append(count=8), Fill(), Next(), Park(), Swap(commits=1), Next(), Park(which=3), Pump()],
    )


def test_followers_in_memory_do_not_overtake_a_message_that_a_person_retried() -> None:
    replay(
        Setup(on_park="continue"),
        [
            Append(count=7),
            Append(count=4),
            Pump(),
            Park(which=2),
            Retry(count=2, counted=False),
            Pump(),
            GiveBack(),
            Stop(),
            Swap(),
            Pass(seconds=4.0),
            Park(which=1, count=2),
            Pump(),
            RetryRow(which=2),
            Swap(),
            Ack(which=4),
            Next(),
        ],
    )


def test_a_stalled_lane_with_nothing_to_try_does_not_wake_again_and_again() -> None:
    replay(Setup(stall_after=1), [Append(), Fill(), Next(), Stop(), Swap()])


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


def test_a_suspect_that_was_given_back_has_not_been_tried() -> None:
    replay(
        Setup(),
        [
            Append(),
            Start(),
            Take(worker=1, by_force=True),
            Pump(worker=1),
            Take(by_force=True),
            Pump(),
            GiveBack(),
            Next(),
        ],
    )


def test_an_answer_does_not_load_more_rows_than_there_is_room_for() -> None:
    replay(
        Setup(window=5, timeout=1.0, stall_after=1, attempts=1),
        [Append(count=8), Pump(), Pass(), Expire(), Pump()],
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


def test_a_poke_between_a_commit_and_its_answer_is_not_lost() -> None:
    replay(
        Setup(timeout=1.0),
        [
            Append(),
            Fill(),
            Next(),
            Pass(),
            Expire(),
            Start(),
            Pump(),
            Start(),
            Take(worker=2, by_force=True),
            Make(worker=2),
            Commit(worker=2),
            RetryRow(),
            Pump(worker=2),
        ],
    )


def test_what_was_skipped_while_it_ran_is_not_given_back() -> None:
    replay(
        Setup(track_all=True), [Append(), Fill(), Next(), Swap(), Next(), SkipRow(), Pump(), GiveBack(), Pump()]
    )


def test_a_skip_that_crosses_a_failure_frees_the_key() -> None:
    replay(
        Setup(track_all=True, max_waiting=1), [Append(count=8), Pump(), Retry(count=2), SkipRow(which=1), Pump()]
    )


def test_a_skip_of_what_was_given_back_frees_the_key() -> None:
    replay(Setup(track_all=True), [Append(), Append(), Pump(), GiveBack(), SkipRow(), Pump()])


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


def test_what_is_given_back_waits_for_a_lower_one_that_holds_its_key() -> None:
    replay(
        Setup(on_park="continue", attempts=1),
        [Append(), Append(), Fill(), Next(), Retry(), Swap(), RetryRow(), Next(), Swap(), GiveBack(), Next()],
    )


def test_a_transaction_for_what_a_person_skipped_leaves_no_claim_behind() -> None:
    replay(Setup(track_all=True), [Append(), Pump(), SkipRow(), Pump(), Make(commits=1), Retry()])


def test_a_due_row_without_room_does_not_wake_again_and_again() -> None:
    replay(Setup(window=2, attempts=1, killed=False), [Append(count=3), Fill(), Next(), Stop(), Retry()])


def test_a_refused_move_without_room_does_not_wake_again_and_again() -> None:
    replay(Setup(keys=1, window=1, timeout=1.0), [Append(count=3), Fill(), Next(), Pass(), Pump()])


def test_a_lane_stalled_by_another_does_not_wake_again_and_again() -> None:
    replay(
        Setup(lanes=2, stall_after=1, killed=False), [Append(count=2), Fill(lane=1), Next(lane=1), Park(lane=1)]
    )


def test_an_ack_during_a_transaction_counts_as_a_success() -> None:
    replay(Setup(), [Append(count=2), Fill(), Next(), Make(commits=1), Ack(), Swap(), Make(), Commit()])


def test_a_failure_during_a_transaction_counts_as_one() -> None:
    replay(Setup(killed=False), [Append(count=2), Pump(), Make(commits=1), Retry()])


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
