"""Messages that run for nothing again and again."""

from milepost.engine.setbacks import (
    MAX_LOST_CONNECTIONS,
    PAUSE_SECONDS,
    PUT_OFF_SECONDS,
    TRIES_IN_PLACE,
    UNCOUNTED_SECONDS,
    Pause,
    Setbacks,
)


def setbacks() -> Setbacks:
    """Those that wait as long as they may."""
    return Setbacks(lambda: 1.0)


class TestLostConnections:
    def test_pauses_grow_and_have_an_end(self) -> None:
        some = setbacks()
        pauses = [some.lost_connection(7) or 0.0 for _ in range(MAX_LOST_CONNECTIONS)]
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == PAUSE_SECONDS

    def test_one_too_many_counts_and_is_a_new_beginning(self) -> None:
        some = setbacks()
        found = [some.lost_connection(7) is None for _ in range(2 * (MAX_LOST_CONNECTIONS + 1))]
        assert found == ([False] * MAX_LOST_CONNECTIONS + [True]) * 2


class TestLostRaces:
    def test_a_few_pauses_in_place_and_then_it_is_put_off_for_longer_and_longer(self) -> None:
        some = setbacks()
        pauses = [some.lost_race(7, 0.0) or Pause(0, in_place=True) for _ in range(30)]
        assert [pause.in_place for pause in pauses] == [True] * TRIES_IN_PLACE + [False] * (30 - TRIES_IN_PLACE)
        seconds = [pause.seconds for pause in pauses]
        assert seconds == sorted(seconds)
        assert (seconds[0], seconds[TRIES_IN_PLACE - 1]) == PAUSE_SECONDS
        assert (seconds[TRIES_IN_PLACE], seconds[-1]) == PUT_OFF_SECONDS

    def test_after_five_minutes_each_counts_until_something_came_of_it(self) -> None:
        some = setbacks()
        assert UNCOUNTED_SECONDS == 300
        assert some.lost_race(7, 1000.0) is not None
        assert some.lost_race(7, 1299.0) is not None
        assert some.lost_race(8, 1299.0) is not None
        assert [some.lost_race(7, 1300.0 + later) for later in (0, 1, 500)] == [None] * 3
        some.forget([7])
        assert some.lost_race(7, 2000.0) is not None

    def test_the_last_pause_ends_with_the_five_minutes(self) -> None:
        some = setbacks()
        for _ in range(20):
            some.lost_race(7, 0.0)
        assert some.lost_race(7, 297.0) == Pause(3.0, in_place=False)


def test_each_message_has_its_own_and_keeps_them_until_something_came_of_it() -> None:
    some = setbacks()
    for position in [7, 8, 7, 9]:
        some.lost_connection(position)
        some.lost_race(position, 0.0)
    some.forget([7, 9, 10])
    assert (some.lost_connection(7), some.lost_connection(8)) == (PAUSE_SECONDS[0], 2 * PAUSE_SECONDS[0])
    assert some.lost_race(8, 0.0) == Pause(2 * PAUSE_SECONDS[0], in_place=True)
    some.forget([7, 8])
    assert len(some) == 0
