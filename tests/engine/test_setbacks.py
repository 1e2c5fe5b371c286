"""Messages that run for nothing again and again."""

from milepost.engine.setbacks import MOST, PAUSES, Setbacks


def setbacks() -> Setbacks:
    """Those that wait as long as they may."""
    return Setbacks(lambda: 1.0)


def test_pauses_grow_and_have_an_end() -> None:
    some = setbacks()
    pauses = [some.pause(7) or 0.0 for _ in range(MOST)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == PAUSES


def test_one_too_many_counts_and_is_a_new_beginning() -> None:
    some = setbacks()
    found = [some.pause(7) is None for _ in range(2 * (MOST + 1))]
    assert found == ([False] * MOST + [True]) * 2


def test_each_message_has_its_own_and_keeps_them_until_something_came_of_it() -> None:
    some = setbacks()
    for position in [7, 8, 7, 9]:
        some.pause(position)
    some.forget([7, 9, 10])
    assert (some.pause(7), some.pause(8)) == (PAUSES[0], 2 * PAUSES[0])
    some.forget([7, 8])
    assert len(some) == 0
