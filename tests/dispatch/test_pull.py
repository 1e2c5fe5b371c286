"""What those who pull need of the core: every message becomes a row as the cursor passes it."""

from dispatch.owner import Owner, many
from milepost.dispatch import Cursor


def test_converting_gives_every_message_its_row_and_hands_out_nothing() -> None:
    owner = Owner()
    owner.fill(*many(1, 4, "ab"), up_to=6)
    owner.lane.convert(owner.now)
    assert owner.next() == []
    assert owner.lane.cursor.position == 0
    assert owner.states() == dict.fromkeys((1, 2, 3, 4), "waiting")
    assert owner.lane.cursor == Cursor(6)


def test_converting_goes_on_page_by_page() -> None:
    owner = Owner(window=2, ordered=False)
    for first in (1, 3, 5):
        assert owner.fill(*many(first, first + 1), up_to=first + 1)
        owner.lane.convert(owner.now)
        assert owner.states() == {first: "waiting", first + 1: "waiting"}
    assert owner.lane.cursor == Cursor(6)
