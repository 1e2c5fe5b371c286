"""What changed, in words."""

import json
from typing import Any

from milepost.progress import definition_changes
from milepost.progress.definition_changes import MAX_SELECTION_CHARACTERS, ComparedDefinition


def defined(orders: str = "stream", lanes: int = 16, **selects: Any) -> ComparedDefinition:
    return ComparedDefinition(selects=json.dumps(selects), orders=orders, lanes=lanes)


class TestSelection:
    def test_each_part_says_what_it_was_and_what_it_is(self) -> None:
        before = defined(category=["order"], types=["order.placed"], where="amount >= 100")
        after = defined(category=["order"], types=["order.placed", "order.cancelled"], where=None)
        assert definition_changes.describe_selection_change(before, after, 81_244) == (
            "types changed: it selected order.placed and now selects order.placed, order.cancelled; "
            "filter changed: it selected amount >= 100 and now selects everything, from position 81,244 on"
        )

    def test_what_was_not_restricted(self) -> None:
        assert definition_changes.describe_selection_change(
            defined(), defined(stream=["order-1"], types=[]), 0
        ) == (
            "streams changed: it selected all and now selects order-1; "
            "types changed: it selected all and now selects none, from position 0 on"
        )

    def test_a_long_filter_is_cut(self) -> None:
        after = defined(where=" || ".join(f"a == {n}" for n in range(1000)))
        assert (
            len(definition_changes.describe_selection_change(defined(), after, 1)) < MAX_SELECTION_CHARACTERS + 200
        )


class TestOrder:
    def test_what_is_to_be(self) -> None:
        after = defined("property CustomerId", 4)
        assert definition_changes.describe_pending_order(defined(), after) == (
            "order is to change from stream to property CustomerId; lanes are to change from 16 to 4, "
            "as soon as all lanes have come to one position"
        )

    def test_what_came_to_be(self) -> None:
        before, after = defined("function 1"), defined("function 2", where="a > 1")
        assert definition_changes.describe_order_change(before, after, 1234, 0) == (
            "filter changed: it selected everything and now selects a > 1; "
            "order changed from a function, version 1 to a function, version 2, from position 1,234 on"
        )
        assert (
            "of the 5,000 positions after that, what was handled comes again"
            in definition_changes.describe_order_change(before, after, 1234, 5000)
        )


def test_what_a_program_waits_for() -> None:
    assert definition_changes.describe_waiting(defined(lanes=8, where="a > 1"), defined("none")) == (
        "waits until a newer program has ended, which runs it with another definition: "
        "filter a > 1, here everything; order stream, here none; lanes 8, here 16"
    )
