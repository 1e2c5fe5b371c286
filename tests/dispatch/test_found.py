"""Schedules that the simulation found, each of which broke something once."""

from dispatch.simulation.events import Change, Forget, Kill, Release, RetryRow, SkipRow, Start, Take
from dispatch.simulation.operations import (
    Ack,
    Append,
    Commit,
    Expire,
    Extend,
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


def test_acked_rows_that_fill_the_window_are_written_at_once() -> None:
    replay(Setup(window=1), [Append(count=2), Fill(), Next(), Retry(after=0.0), Pump(), Ack(), Pump(lazy=True)])


def test_a_message_gets_one_row_when_what_is_parked_begins_to_hold_its_key() -> None:
    replay(
        Setup(lanes=2, on_park="continue"),
        [
            Append(count=6),
            Pump(),
            Park(lane=1, which=1),
            Append(key=3),
            Pump(lazy=True),
            Append(count=2, key=2),
            Release(),
            Retry(which=1),
            Fill(),
            Change(blocks=True),
            Swap(),
        ],
    )


def test_a_probe_of_one_lane_is_not_held_up_by_suspects_of_another() -> None:
    replay(
        Setup(lanes=2, keys=2, on_park="continue", stall_after=3, attempts=1),
        [
            Append(count=4),
            Fill(),
            Next(),
            Retry(cause=2),
            Swap(),
            Pass(),
            Start(),
            Kill(),
            Take(),
            Take(lane=1),
            Pump(),
        ],
    )


def test_what_a_person_retries_after_a_failure_is_not_overwritten_by_it() -> None:
    replay(
        Setup(ordered=False, window=8),
        [
            Append(count=4),
            Fill(),
            Next(),
            Retry(which=1, count=5, after=0.0),
            Swap(),
            Append(count=2),
            Append(count=4),
            Append(),
            Pump(),
            Ack(which=3, count=2),
            Make(),
            Commit(),
            Learn(),
            Next(),
            Ack(which=3),
            Make(),
            Retry(which=6),
            Pass(),
            RetryRow(which=1),
            Pump(),
        ],
    )


def test_what_waits_behind_what_is_settled_and_not_written_is_not_forgotten() -> None:
    replay(
        Setup(keys=1, kept=True),
        [
            Append(count=4),
            Fill(),
            Next(),
            Retry(after=0.0),
            Pump(),
            Ack(),
            Swap(),
            SkipRow(which=1),
            Make(),
            Next(),
            Ack(),
        ],
    )


def test_what_waits_behind_what_is_parked_and_not_written_is_not_forgotten() -> None:
    replay(
        Setup(lanes=3, on_park="continue", timeout=1.0, attempts=1, kept=True),
        [
            Append(count=8),
            Pump(),
            Pass(),
            Append(),
            Append(),
            Pump(),
            Retry(cause=2),
            Swap(),
            SkipRow(which=2, poke=False),
            Append(),
            Pump(),
            Pass(),
            Make(),
        ],
    )


def test_what_was_given_back_is_not_said_to_run_when_a_person_retries_what_was_before_it() -> None:
    replay(
        Setup(keys=2, on_park="continue", attempts=1, killed=False),
        [
            Append(count=4),
            Start(),
            Take(worker=1, by_force=True),
            Pump(worker=1),
            Take(by_force=True),
            Pump(),
            Extend(),
            SkipRow(which=1),
            Pass(seconds=7.0),
            Pump(),
            RetryRow(),
            Make(),
            GiveBack(),
        ],
    )


def test_what_was_given_back_is_not_said_to_run_when_what_was_before_it_fails() -> None:
    replay(
        Setup(keys=1, on_park="continue", track_all=True, killed=False),
        [
            Append(count=2),
            Pump(),
            Park(),
            Pump(),
            RetryRow(),
            Pump(),
            GiveBack(),
            Pump(),
            Retry(after=100.0),
            Swap(),
        ],
    )


def test_what_ran_alone_in_a_process_that_lost_its_lane_is_not_said_to_run_any_more() -> None:
    replay(
        Setup(track_all=True, killed=False),
        [
            Append(),
            Pump(),
            Start(),
            Kill(),
            Take(),
            Pump(),
            Make(commits=1),
            Forget(),
        ],
    )


def test_what_goes_on_behind_what_was_parked_is_not_overtaken_when_parked_ones_come_to_hold_their_keys() -> None:
    replay(
        Setup(keys=1, on_park="continue", window=1),
        [
            Append(count=4),
            Fill(),
            Next(),
            Park(),
            Change(blocks=True),
            Fill(),
            Swap(),
        ],
    )


def test_what_was_parked_is_not_taken_for_one_that_was_given_back_when_it_comes_to_hold_its_key_no_more() -> None:
    replay(
        Setup(keys=1, kept=True),
        [
            Append(count=2),
            Fill(),
            Next(),
            Park(),
            Swap(),
            RetryRow(),
            Start(),
            Kill(),
            Take(),
            Pump(),
            Park(),
            Change(blocks=False),
        ],
    )
