"""How lanes are shared out: each worker's number, and what it takes and gives to come to it."""

from collections.abc import Collection, Iterable

from milepost.progress.protocol import Share


def target(subscription: int, lanes: int, workers: int, before: int) -> int:
    """How many lanes of a subscription are a worker's, of so many that want it, so many of them before it.

    Who gets one more is another for each subscription, or one worker would have all that have one lane.
    """
    return lanes // workers + ((before + subscription) % workers < lanes % workers)


def share(goal: int, owned: Collection[int], held: Collection[int], free: Iterable[int]) -> Share:
    """What to take and give, for a worker that owns some lanes and holds some of those.

    What it holds and does not own is lost; what it owns and does not hold it may take.
    """
    kept = sorted(lane for lane in held if lane in owned)
    waiting = sorted(lane for lane in owned if lane not in held)
    room = max(0, goal - len(kept))
    taken = [*waiting, *sorted(free)][:room]
    return Share(take=tuple(taken), give=tuple(sorted({*kept[goal:], *(set(held) - set(owned))})))
