"""Ranges of positions, against sets of them."""

from hypothesis import given
from hypothesis import strategies as st

from milepost.ranges import Ranges

positions = st.sets(st.integers(1, 40))


def of(chosen: set[int]) -> Ranges:
    """As few ranges as possible."""
    return Ranges((position, position) for position in sorted(chosen)).joined(Ranges())


def all_of(ranges: Ranges) -> set[int]:
    return {position for start, end in ranges for position in range(start, end + 1)}


@given(positions, positions)
def test_they_are_what_sets_are(some: set[int], others: set[int]) -> None:
    assert all_of(of(some).joined(of(others))) == some | others
    assert all_of(of(some).minus(of(others))) == some - others
    assert all_of(of(some).without(sorted(others))) == some - others
    assert of(some).size == len(some)
    assert of(some).last == max(some, default=0)


@given(positions, st.integers(0, 41))
def test_parts_of_them(some: set[int], position: int) -> None:
    assert all_of(of(some).up_to(position)) == {each for each in some if each <= position}
    assert all_of(of(some).beyond(position)) == {each for each in some if each > position}
    assert (position in of(some)) is (position in some)
