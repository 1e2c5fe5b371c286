"""Mistakes in dispatch: some of those that its simulation finds, found by the tests of its parts too."""

from dispatch.mutations import MUTATIONS
from mutations.mutation import Mutation

FOUND_BY = {
    "the cursor goes one too far": (
        "dispatch/test_window.py::test_the_cursor_stands_before_the_lowest_open_message",
    ),
    "what was done before the owner came is taken again": (
        "dispatch/test_window.py::test_what_a_start_put_ahead_is_not_handed_out_and_stays_ahead",
        "dispatch/test_restart.py::test_from_a_stored_cursor_it_goes_on_with_what_was_open",
    ),
    "a window takes one too many": (
        "dispatch/test_window.py::test_a_full_window_takes_no_more_and_says_how_far_it_came",
    ),
    "a key is forgotten: what follows does not wait": (
        "dispatch/test_order.py::test_a_later_message_of_a_key_waits_until_the_earlier_is_settled",
    ),
    "a row runs before it is due": (
        "dispatch/test_probation.py::test_while_it_waits_others_go_on_and_those_of_its_key_do_not",
    ),
    "a message is tried once too often": (
        "dispatch/test_attempts.py::test_at_the_limit_it_is_parked",
        "dispatch/test_retry.py::test_after_the_last_attempt_there_is_no_further_one",
    ),
    "a claim is not checked: whoever had it before may settle": (
        "dispatch/test_settling.py::test_the_claim_of_a_consumer_that_left_is_refused",
    ),
    "a transaction settles what a person has changed": (
        "dispatch/test_settling.py::test_a_row_that_a_transaction_settles_must_be_unchanged",
    ),
    "what ended its process is not counted": (
        "dispatch/test_probation.py::test_each_time_it_ends_its_process_again_counts_once_until_it_is_parked",
    ),
    "more than one is tried while stalled": ("dispatch/test_breaker.py::test_lanes_of_a_subscription_share_it",),
    "a success does not end a stall": ("dispatch/test_breaker.py::test_the_first_success_ends_it",),
    "waiting rows have no limit": (
        "dispatch/test_order.py::test_at_max_waiting_the_cursor_stops_and_the_key_is_named",
    ),
    "a new consumer does not look for what waited for it": (
        "dispatch/test_routing.py::test_unrouted_rows_go_out_in_order_and_before_new_messages_as_soon_as_a_route_matches",
    ),
    "a capacity is one too large": ("dispatch/test_budget.py::test_a_member_is_full_at_its_capacity",),
    "messages spill over to a lower priority when the higher is full": (
        "dispatch/test_routing.py::test_a_full_higher_route_does_not_spill_over_while_other_messages_go_on",
    ),
}
"""Of each, the tests that fail."""

DISPATCH = tuple(
    Mutation(each.breaks, f"dispatch/{each.file}", each.original, each.mistaken, FOUND_BY[each.breaks])
    for each in MUTATIONS
    if each.breaks in FOUND_BY
)
