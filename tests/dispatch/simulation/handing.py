"""What must hold when a message is handed out."""

from dispatch.simulation.holding import Claim, Holding
from dispatch.simulation.message import Message
from dispatch.simulation.order import lowest_unsettled
from dispatch.simulation.routing import check_route, check_turn, check_unrouted, unpin
from dispatch.simulation.violation import ensure
from milepost.dispatch.delivery import LaneDelivery, State


def next_of(holding: Holding, limit: int, stall: int | None) -> list[LaneDelivery[Message]]:
    """What a lane hands out now, checked. `stall` numbers the stall of the subscription, if there is one."""
    unpin(holding)
    given = holding.lane.next(holding.store.now, limit)
    for promised in holding.lane._lane_memory.guards.values():
        holding.promises.setdefault(promised, (holding.consumers.version, holding.answers))
    ensure(len(given) <= limit, f"{len(given)} deliveries instead of {limit}")
    for delivery in given:
        claim = _claim(holding, delivery, stall)
        _check_claim(holding, claim)
        if holding.current:
            _check_finality(holding, claim)
            _check_order(holding, claim)
            _check_attempts(holding, claim)
            _check_guard(holding, claim)
            _check_suspicion(holding, claim)
        if holding.routed:
            check_route(holding, claim)
            if holding.current and delivery not in holding.promises:
                check_turn(holding, claim)
        holding.open[delivery] = claim
        holding.handed.add(claim.position)
    check_unrouted(holding)
    return given


def _claim(holding: Holding, delivery: LaneDelivery[Message], stall: int | None) -> Claim:
    message = delivery.message
    timeout = holding.settings.timeout
    return Claim(
        delivery,
        message.position,
        holding.key_of(message),
        message.size,
        delivery.attempt - 1,
        None if timeout is None else holding.store.now + timeout,
        delivery.alone,
        None if delivery in holding.promises else stall,
    )


def _check_claim(holding: Holding, claim: Claim) -> None:
    """It is a message of the lane's life, not handed out twice, and alone if it has to be."""
    position = claim.position
    there = holding.store.log.by_position.get(position)
    ensure(claim.delivery.message == there, f"{claim.delivery.message} is handed out instead of {there}")
    ensure(all(other.position != position for other in holding.open.values()), f"{position} is out already")
    ensure(claim.deadline == claim.delivery.deadline, f"{position} times out at {claim.delivery.deadline}")
    if claim.alone or any(other.alone for other in holding.open.values()):
        ensure(not holding.open, f"{position} is not alone")


def _check_suspicion(holding: Holding, claim: Claim) -> None:
    """It runs alone if it ran when a process vanished, and only then."""
    suspect = claim.position in holding.store.suspects
    ensure(claim.alone is suspect, f"{claim.position} is alone: {claim.alone}, and should be: {suspect}")


def _check_finality(holding: Holding, claim: Claim) -> None:
    """What is settled, parked, or not due is not handed out."""
    position, store = claim.position, holding.store
    ensure(position not in store.settled, f"{position} is settled and handed out again")
    ensure(position not in holding.acked, f"{position} was acked and is handed out again")
    ensure(position not in holding.told_skips, f"{position} was skipped by a person and is handed out")
    fate, row = holding.fates.get(position), holding.row(position)
    ensure(fate is None or not fate.parked, f"{position} was parked and is handed out")
    ensure(fate is None or fate.due[0] <= store.now, f"{position} is handed out before it is due")
    if row is not None and row.state is State.RETRYING and row.due is not None:
        ensure(row.due <= store.now, f"{position} is handed out at {store.now}, and due at {row.due}")
    ensure(row is None or row.state is not State.PARKED, f"{position} is parked and handed out")


def _check_order(holding: Holding, claim: Claim) -> None:
    """No lower one of its key is unsettled, and no other one is out."""
    if claim.key is None:
        return
    _, answers = holding.promises.get(claim.delivery, (0, holding.answers))
    lower = lowest_unsettled(holding, claim.key, answers)
    in_order = claim.position in holding.store.loose or lower is None or lower >= claim.position
    ensure(in_order, f"{claim.position} is handed out before {lower} of its key")
    for other in holding.open.values():
        ensure(other.key != claim.key, f"{claim.position} is handed out beside {other.position} of its key")


def _check_attempts(holding: Holding, claim: Claim) -> None:
    if claim.delivery in holding.promises and claim.position in holding.store.touched:
        return  # A person may have started the count anew in between.
    counted = holding.attempts(claim.position)
    ensure(claim.counted in counted, f"attempt {claim.counted + 1} of {claim.position}, after {counted}")


def _check_guard(holding: Holding, claim: Claim) -> None:
    """Its row says that it runs, where that matters."""
    position, row = claim.position, holding.row(claim.position)
    if position in holding.store.touched:
        return
    running = row is not None and row.state is State.RUNNING
    ensure(running or not holding.settings.track_all, f"{position} starts without a row that says so")
    ensure(running or not claim.alone, f"{position} is suspect and starts without a row that says so")
    if not holding.unclean or running:
        return
    if row is None:
        ordinal = holding.ordinals[position]
        ensure(ordinal > holding.settings.probation, f"{position} starts on probation without a row")
    else:
        ensure(row.since > holding.taken_at, f"{position} starts on probation, its row says {row.state}")
