"""Goes on until there is nothing to do, and then looks for what was left lying."""

from dispatch.simulation import settling
from dispatch.simulation.holding import Holding
from dispatch.simulation.message import Message
from dispatch.simulation.order import is_free, lowest_unsettled
from dispatch.simulation.routing import has_room
from dispatch.simulation.violation import ensure
from dispatch.simulation.worker import Worker
from dispatch.simulation.world import World
from milepost.dispatch.delivery import State

UNLIMITED = 10_000


def pump(world: World, worker: Worker, *, fill: bool, lazy: bool = False) -> None:
    """A worker reads, exchanges and hands out until nothing of it does anything.

    A lazy one exchanges only when that is urgent, not to write what could as well be written later.
    """
    rounds = 40 + 3 * len(world.store.log.messages)
    while _round(world, worker, fill, lazy):
        rounds -= 1
        ensure(rounds > 0, "a worker goes on and on, though there is nothing to do")
    if any(holding.lane.suspects for holding in worker.holdings.values()):
        _check_suspects(worker)
        return
    for holding in worker.holdings.values():
        check_quiet(holding, filled=fill)


def _check_suspects(worker: Worker) -> None:
    """Where suspects wait, one is out, unless that is not to be."""
    out = any(holding.open for holding in worker.holdings.values())
    excused = worker.breaker.stalled or worker.store.setup.strategy or out
    ensure(bool(excused), "suspects wait, and nothing is out")


def _round(world: World, worker: Worker, fill: bool, lazy: bool) -> bool:
    """One round of all lanes; whether anything happened."""
    steps = [_step(world, worker, holding, fill, lazy) for holding in list(worker.holdings.values())]
    return any(steps)


def _step(world: World, worker: Worker, holding: Holding, fill: bool, lazy: bool) -> bool:
    """One round of a lane; whether anything happened."""
    settling.expire(holding)
    busy = fill and _fill(worker, holding)
    if not worker.has(holding):
        return True
    busy |= _exchange(world, worker, holding, lazy)
    if not worker.has(holding):
        return True
    suspects = holding.lane.suspects
    given = worker.next(holding, UNLIMITED)
    # Where the last suspect was set aside, it is the others' turn.
    busy |= suspects and not holding.lane.suspects
    world.note("pumped", *((delivery.message.position, delivery.consumer) for delivery in given))
    return _exchange(world, worker, holding, lazy) or busy or bool(given) or holding.lane.urgent(world.store.now)


def _fill(worker: Worker, holding: Holding) -> bool:
    """Reads all that there is for a lane; whether that moved its reach."""
    page = worker.read(holding, UNLIMITED, 0, 0)
    return page is not None and worker.fill(holding.number, page)


def _exchange(world: World, worker: Worker, holding: Holding, lazy: bool) -> bool:
    """Exchanges, if there is anything to write or to ask."""
    lane = holding.lane
    if holding.under_way is None and not lane.urgent(world.store.now) and (lazy or not lane.dirty):
        return False
    if holding.under_way is None and (made := holding.make()) is not None:
        world.note("exchange", made.write, made.ask)
    if holding.under_way is None:
        return False
    worker.swap(holding)
    return True


def check_quiet(holding: Holding, *, filled: bool) -> None:
    """Nothing that could go on is left lying."""
    lane = holding.lane
    ensure(lane.in_flight == len(holding.open), f"{lane.in_flight} in flight, and {len(holding.open)} are open")
    wake = lane.wake_at()
    ensure(wake is None or wake > holding.store.now, f"it would wake at {wake}, again and again")
    if not holding.current:
        return
    ensure(lane.has_rows or not holding.record.unsettled, "there are rows that the lane knows nothing of")
    if holding.breaker.stalled:
        return
    for message in holding.record.messages:
        if message.position <= lane.reach and _should_be_out(holding, message):
            why = f"reach {lane.reach}, rows {holding.row(message.position)}, {lane.stopped}"
            ensure(False, f"{message.position} could be handed out and is not: {why}")
    _check_wake(holding)
    if filled and not holding.open and not holding.routed and not _is_at_limit(holding):
        horizon = holding.store.log.horizon
        ensure(lane.reach == horizon, f"nothing is open, and the reach is {lane.reach} of {horizon}")


def _should_be_out(holding: Holding, message: Message) -> bool:
    position = message.position
    if not _is_unsettled(holding, position) or any(c.position == position for c in holding.open.values()):
        return False
    if not _is_due(holding, position) or not _is_key_free(holding, message):
        return False
    if _is_full_of_rows(holding) and _has_rows(holding, message):
        return False
    return not holding.routed or has_room(holding, message)


def _is_unsettled(holding: Holding, position: int) -> bool:
    if position in holding.store.settled or position in holding.acked or position in holding.rejected:
        return False
    row = holding.row(position)
    return position not in holding.unpoked and (row is None or row.state is not State.SKIPPED)


def _is_due(holding: Holding, position: int) -> bool:
    row = holding.row(position)
    if position in holding.fates or (row is not None and row.state is State.PARKED):
        return False
    return row is None or row.due is None or row.due <= holding.store.now


def _is_key_free(holding: Holding, message: Message) -> bool:
    if (key := holding.key_of(message)) is None:
        return True
    others = {other.position for other in holding.store.log.by_key[key]}
    if not others.isdisjoint(holding.unpoked | holding.fates.keys() | holding.untold.keys()):
        return False
    if any(claim.key == key for claim in holding.open.values()):
        return False
    if any(other in holding.store.loose and not is_free(holding, other) for other in others):
        return False
    return lowest_unsettled(holding, key) == message.position


def _has_rows(holding: Holding, message: Message) -> bool:
    """Whether something has to be loaded, or looked at, before it can go out."""
    key = holding.key_of(message)
    others = [message] if key is None else holding.store.log.by_key[key]
    return any(other.position in holding.record.rows for other in others)


def _is_full_of_rows(holding: Holding) -> bool:
    memory = holding.lane._lane_memory
    return memory.room() <= 0 and len(memory.rows) >= holding.settings.window // 8 + 1


def _check_wake(holding: Holding) -> None:
    """Whoever sleeps is woken when something is due."""
    now, wake = holding.store.now, holding.lane.wake_at()
    times = [claim.deadline for claim in holding.open.values() if claim.deadline is not None]
    full = _is_full_of_rows(holding)
    for row in holding.record.rows.values():
        if row.state is not State.RETRYING or row.due is None or row.due <= now:
            continue
        if row.position not in holding.unpoked and is_free_below(holding, row.position) and not full:
            times.append(row.due)
    if times:
        ensure(
            wake is not None and wake <= min(times), f"it wakes at {wake}, and something is due at {min(times)}"
        )


def _is_at_limit(holding: Holding) -> bool:
    """Whether the cursor stops, since there are enough rows of a kind."""
    counts, settings = holding.counts, holding.settings
    return counts.waiting >= settings.max_waiting or counts.unrouted >= settings.max_unrouted


def is_free_below(holding: Holding, position: int) -> bool:
    """Whether a message is the one that holds its key."""
    key = holding.key_of(holding.store.log.by_position[position])
    if key is None:
        return True
    return lowest_unsettled(holding, key) == position and not is_free(holding, position)
