"""The end of every schedule: all that is left is settled."""

from dispatch.simulation import settling
from dispatch.simulation.events import poke
from dispatch.simulation.pump import pump
from dispatch.simulation.violation import ensure
from dispatch.simulation.world import World
from milepost.dispatch.delivery import State
from milepost.dispatch.routing.route import Route

EVERYTHING = Route(name="all", capacity=3, priority=9)


def drain(world: World) -> None:
    """Everything comes to its end: with the workers that there are, or with a fresh one."""
    if not world.setup.kept:
        _end_workers(world)
    _take_lanes(world)
    rounds = 100 + 20 * len(world.store.log.messages)
    while not _is_done(world):
        rounds -= 1
        ensure(rounds > 0, "the drain goes on and on")
        for worker in world.workers.values():
            pump(world, worker, fill=True)
        world.check()
        if not _retry_parked(world) and not _ack_all(world):
            _sleep(world)
    for worker in world.workers.values():
        for holding in list(worker.holdings.values()):
            worker.release(holding)
    _check_end(world)


def _end_workers(world: World) -> None:
    for worker in list(world.workers.values()):
        if not world.setup.killed:
            for holding in list(worker.holdings.values()):
                worker.release(holding)
        del world.workers[worker.number]


def _take_lanes(world: World) -> None:
    """Lanes that nobody has go to a fresh worker, and everyone has a consumer for everything.

    Who has a lane of an earlier life has to find out by itself: until then it keeps others from taking that.
    """
    for worker in world.workers.values():
        worker.notice()
        worker.let_go()
        overtaken = [each for each in worker.holdings.values() if not (each.current or each.store.is_over)]
        for holding in overtaken:
            worker.drop(holding.number)
    worker = world.start()
    for lane in range(world.setup.lanes):
        owner = world.holder(lane) or worker.take(lane)
        ensure(owner is not None, f"lane {lane} cannot be taken, though its worker knows the life of the log")
        assert owner is not None
        holding = owner
        poke(holding)
        if holding.routed:
            holding.lane.join("all", [EVERYTHING])
            holding.consumers.join("all", [EVERYTHING])


def _is_done(world: World) -> bool:
    if any(record.unsettled for record in world.store.lanes):
        return False
    horizon, now = world.store.log.horizon, world.store.now
    holdings = [holding for worker in world.workers.values() for holding in worker.holdings.values()]
    lanes = [holding.lane for holding in holdings]
    if any(holding.under_way or holding.open for holding in holdings) or any(
        lane._lane_memory.rows for lane in lanes
    ):
        return False
    return all(lane.cursor.position == horizon and not lane.urgent(now) for lane in lanes)


def _retry_parked(world: World) -> int:
    """People retry all that is parked; how much that was."""
    retried = 0
    for record in world.store.lanes:
        owner = world.owner(record.number)
        before = retried
        for row in list(record.rows.values()):
            if row.state is State.PARKED:
                retried += 1
                world.store.retry(record.number, row.position)
                if owner is not None and owner.settings.on_park == "continue":
                    owner.untold[row.position] = row.revision + 1
        if owner is not None and retried > before:
            poke(owner)
    return retried


def _ack_all(world: World) -> int:
    acked = 0
    for worker in world.workers.values():
        for holding in worker.holdings.values():
            acked += len(holding.open)
            settling.ack(holding, list(holding.open))
    return acked


def _sleep(world: World) -> None:
    """Until something says that it is time; if nothing does, nothing may be left."""
    holdings = [holding for worker in world.workers.values() for holding in worker.holdings.values()]
    times = [holding.lane.wake_at() for holding in holdings]
    wake = min((time for time in times if time is not None), default=None)
    ensure(wake is not None or _is_done(world), "messages are left, and nothing would ever wake their owner")
    if wake is not None:
        world.store.now = max(world.store.now, wake)
    for holding in holdings:
        settling.expire(holding)


def _check_end(world: World) -> None:
    store = world.store
    for record in store.lanes:
        ensure(not record.unsettled, f"rows are left: {record.rows}")
        left = [row for row in record.rows.values() if row.due is not None]
        ensure(not left, f"nobody has looked at {left}")
        ensure(record.cursor.position == store.log.horizon, f"{record.cursor} is not the end, {store.log.horizon}")
        ensure(not record.cursor.ahead, f"{record.cursor} has something ahead")
    for message in store.log.messages:
        row = store.lanes[store.lane_of(message)].rows.get(message.position)
        settled = message.position in store.settled or row is not None
        ensure(settled, f"{message.position} was never settled")
        handled = message.id in store.handled or message.position in store.unhandled
        ensure(handled or row is not None, f"{message} counts as settled, and nobody has handled it")
    ids = {message.id for message in store.log.messages}
    lost = [effect for effect in store.effects if effect not in ids]
    ensure(not lost, f"messages {lost} took effect and are not in the log")
