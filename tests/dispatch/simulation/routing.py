"""Who gets a message, and who had room for it."""

from dispatch.simulation.consumers import GroupKey
from dispatch.simulation.holding import Claim, Holding, bucket_of
from dispatch.simulation.message import Message
from dispatch.simulation.violation import ensure
from milepost.dispatch.delivery import LaneDelivery, State
from milepost.dispatch.routing.route import Route


def check_route(holding: Holding, claim: Claim) -> None:
    """It goes to one who should get it and has room."""
    delivery, consumers = claim.delivery, holding.consumers
    ensure(delivery.consumer in consumers.routes, f"{claim.position} goes to {delivery.consumer}, who is gone")
    version, _ = holding.promises.get(delivery, (consumers.version, 0))
    if version != consumers.version:
        return
    group = consumers.group_of(delivery.message)
    members = [] if group is None else [(name, route.name) for name, route in consumers.members_of(group)]
    member = (str(delivery.consumer), str(route_of(delivery)))
    ensure(member in members, f"{claim.position} goes to {member}, and should go to one of {members}")
    _check_capacity(holding, claim)
    if is_pinned(holding) and delivery not in holding.promises:
        trusted = [name for name, _ in members if name not in consumers.doubted]
        if trusted and delivery.consumer not in trusted:
            _check_lent(holding, claim, member)
        else:
            holding.lent.clear()
            _check_pin(holding, claim, group)


def unpin(holding: Holding) -> None:
    """Before something is handed out: where the window is full, buckets go to others."""
    holding.shares = holding.lane.room() <= 0
    if holding.shares:
        holding.pins.clear()


def _check_capacity(holding: Holding, claim: Claim) -> None:
    delivery = claim.delivery
    route = holding.consumers.route(str(delivery.consumer), str(route_of(delivery)))
    assert route is not None
    sizes = [claim.size, *open_sizes(holding, str(delivery.consumer), route.name)]
    ensure(len(sizes) <= route.capacity, f"{delivery.consumer} gets {len(sizes)} of {route.capacity}")
    # The last one may overshoot; which one that was is not seen for those that were promised before.
    before_last = sum(sizes) - max(sizes)
    ensure(before_last < route.capacity_bytes, f"{delivery.consumer} gets {sizes} of {route.capacity_bytes} bytes")


def _check_pin(holding: Holding, claim: Claim, group: GroupKey | None) -> None:
    """A bucket stays with whom it went to, while nobody comes, goes or changes."""
    if holding.shares:
        return
    pin = (group, bucket_of(claim.delivery.message))
    now = (holding.consumers.version, claim.delivery.consumer)
    before = holding.pins.get(pin)
    if before is not None and before[0] == now[0]:
        ensure(before[1] == now[1], f"bucket {pin} went from {before[1]} to {now[1]}")
    holding.pins[pin] = now


def _check_lent(holding: Holding, claim: Claim, member: tuple[str, str]) -> None:
    """One that is doubted gets what nobody has tried, and between two of its own another gets something."""
    ensure(not claim.counted and not claim.alone, f"{claim.position} was tried, and goes to {member}")
    lent = (holding.consumers.version, *member)
    ensure(lent not in holding.lent or holding.shares, f"{claim.position} goes to {member}, who just had one")
    holding.lent.add(lent)


def check_unrouted(holding: Holding) -> None:
    """What is set aside as unrouted has nobody who could take it."""
    aside = holding.lane._lane_memory.aside
    for position, entry in aside.items():
        is_unrouted = entry.fate is not None and entry.fate.state is State.UNROUTED
        if is_unrouted and position not in holding.unrouted:
            ensure(not has_room(holding, entry.message), f"{position} is unrouted, and there is someone with room")
    holding.unrouted = set(aside)


def has_room(holding: Holding, message: Message) -> bool:
    """Whether someone should get it who has room for certain: also after having been full.

    What is pinned may wait for its owner, but not in a full window, where it would be in the way of others. What
    is stored is in nobody's way, and goes before what follows it.
    """
    group = holding.consumers.group_of(message)
    if group is None:
        return False
    rooms = [_is_low(holding, name, route) for name, route in holding.consumers.members_of(group)]
    waits = is_pinned(holding) and (holding.lane.room() > 0 or _is_stored(holding, message, group))
    return all(rooms) if waits else any(rooms)


def _is_stored(holding: Holding, message: Message, group: GroupKey) -> bool:
    """Whether it has a row, or another one of its group comes before it that is in the store alone."""
    rows, log = holding.record.rows, holding.store.log.by_position
    return message.position in rows or any(
        row.state is State.UNROUTED
        and position < message.position
        and position not in holding.lane._lane_memory.rows
        and holding.consumers.group_of(log[position]) == group
        for position, row in rows.items()
    )


def is_pinned(holding: Holding) -> bool:
    return (holding.store.setup.strategy or "").startswith("pinned")


def route_of(delivery: LaneDelivery[Message]) -> str | None:
    """The name of the route that matched; None for the lane's own process."""
    return str(delivery.member.route) if delivery.member else None


def open_sizes(holding: Holding, consumer: str, route: str | None) -> list[int]:
    """The sizes of a route's open messages."""
    return [
        claim.size
        for claim in holding.open.values()
        if claim.delivery.consumer == consumer and route_of(claim.delivery) == route
    ]


def _promised_sizes(holding: Holding, consumer: str, route: str | None) -> list[int]:
    """The sizes of messages that wait for their rows to say that they run."""
    return [
        delivery.message.size
        for delivery in holding.promises
        if delivery.consumer == consumer
        and route_of(delivery) == route
        and delivery not in holding.open
        and delivery.entry.delivery is delivery
    ]


def _is_low(holding: Holding, consumer: str, route: Route) -> bool:
    sizes = [*open_sizes(holding, consumer, route.name), *_promised_sizes(holding, consumer, route.name)]
    if not route.capacity or not route.capacity_bytes:
        return False
    return len(sizes) <= route.capacity * 4 // 5 and sum(sizes) <= route.capacity_bytes * 4 // 5


def check_turn(holding: Holding, claim: Claim) -> None:
    """Without keys a group gets its messages in the order of the log, also those that it had no room for."""
    if claim.key is not None or claim.alone or claim.position in holding.handed or is_pinned(holding):
        return
    group = holding.consumers.group_of(claim.delivery.message)
    promised = {delivery.entry.position for delivery in holding.promises}
    settled = {*holding.acked, *holding.unpoked, *holding.fates, *holding.handed, *promised}
    for position, row in holding.record.rows.items():
        if row.state is State.UNROUTED and position < claim.position and position not in settled:
            other = holding.consumers.group_of(holding.store.log.by_position[position])
            ensure(other != group, f"{claim.position} goes out before {position}")
