"""Messages that run for nothing again and again."""

from milepost.engine.handlers.transient_failures import (
    IN_PLACE_PAUSE_SECONDS,
    MAX_LOST_CONNECTIONS,
    MAX_TRIES_IN_PLACE,
    PUT_OFF_SECONDS,
    UNCOUNTED_SECONDS,
    RerunPause,
    TransientFailures,
)


def setbacks() -> TransientFailures:
    """Those that wait as long as they may."""
    return TransientFailures(lambda: 1.0)


class TestLostConnections:
    def test_pauses_grow_and_have_an_end(self) -> None:
        some = setbacks()
        pauses = [some.lost_connection(7) or 0.0 for _ in range(MAX_LOST_CONNECTIONS)]
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == IN_PLACE_PAUSE_SECONDS

    def test_one_too_many_counts_and_is_a_new_beginning(self) -> None:
        some = setbacks()
        found = [some.lost_connection(7) is None for _ in range(2 * (MAX_LOST_CONNECTIONS + 1))]
        assert found == ([False] * MAX_LOST_CONNECTIONS + [True]) * 2


class TestLostRaces:
    def test_a_few_pauses_in_place_and_then_it_is_put_off_for_longer_and_longer(self) -> None:
        some = setbacks()
        pauses = [some.lost_race(7, 0.0) or RerunPause(0, in_place=True) for _ in range(30)]
        assert [pause.in_place for pause in pauses] == [True] * MAX_TRIES_IN_PLACE + [False] * (
            30 - MAX_TRIES_IN_PLACE
        )
        seconds = [pause.seconds for pause in pauses]
        assert seconds == sorted(seconds)
        assert (seconds[0], seconds[MAX_TRIES_IN_PLACE - 1]) == IN_PLACE_PAUSE_SECONDS
        assert (seconds[MAX_TRIES_IN_PLACE], seconds[-1]) == PUT_OFF_SECONDS

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
        assert some.lost_race(7, 297.0) == RerunPause(3.0, in_place=False)


def test_each_message_has_its_own_and_keeps_them_until_something_came_of_it() -> None:
    some = setbacks()
    for position in [7, 8, 7, 9]:
        some.lost_connection(position)
        some.lost_race(position, 0.0)
    some.forget([7, 9, 10])
    assert (some.lost_connection(7), some.lost_connection(8)) == (
        IN_PLACE_PAUSE_SECONDS[0],
        2 * IN_PLACE_PAUSE_SECONDS[0],
    )
    assert some.lost_race(8, 0.0) == RerunPause(2 * IN_PLACE_PAUSE_SECONDS[0], in_place=True)
    some.forget([7, 8])
    assert len(some) == 0
