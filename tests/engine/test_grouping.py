"""How many messages go into one transaction."""

from milepost.engine.handlers.transient_failures import GROWTH_PAUSES_SECONDS, AdaptiveBatchSize


def test_all_of_them_at_first() -> None:
    assert AdaptiveBatchSize(64).size == 64


def test_fewer_after_a_lost_race_down_to_one() -> None:
    grouping = AdaptiveBatchSize(64)
    sizes = []
    for _ in range(5):
        grouping.lost(0.0)
        sizes.append(grouping.size)
    assert sizes == [16, 4, 1, 1, 1]


def test_more_when_none_was_lost_for_a_while() -> None:
    grouping = AdaptiveBatchSize(10)
    grouping.lost(100.0)
    grouping.committed(100.0 + GROWTH_PAUSES_SECONDS[0] - 0.1)
    assert grouping.size == 2
    grouping.committed(100.0 + GROWTH_PAUSES_SECONDS[0])
    assert grouping.size == 4
    grouping.committed(100.0 + GROWTH_PAUSES_SECONDS[0])
    assert grouping.size == 4


def test_who_loses_again_and_again_tries_more_ever_less_often() -> None:
    grouping = AdaptiveBatchSize(4)
    now, waits = 0.0, []
    for _ in range(6):
        grouping.lost(now)
        begun = now
        while grouping.size == 1:
            now += 0.5
            grouping.committed(now)
        waits.append(now - begun)
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_all_of_them_again_is_a_new_beginning() -> None:
    grouping = AdaptiveBatchSize(4)
    grouping.lost(0.0)
    grouping.committed(5.0)
    grouping.committed(15.0)
    assert grouping.size == 4
    grouping.lost(20.0)
    grouping.committed(25.0)
    assert grouping.size == 2
