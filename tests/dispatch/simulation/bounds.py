"""How much a lane may have in memory."""

from dispatch.simulation.consumers import Consumers
from dispatch.simulation.message import Message
from dispatch.simulation.violation import ensure
from milepost.dispatch.lane import Lane


class Bounds:
    """The largest of all that bounds a lane's memory, since it was taken."""

    def __init__(self, suspects: int) -> None:
        self._suspects = suspects
        self._window = 0
        self._in_flight = 0
        """What consumers give back is in memory beside the window."""
        self._capacity = 0
        """So much is loaded for consumers beside the window."""

    def check(self, lane: Lane[Message], window: int, consumers: Consumers) -> None:
        """What an exchange asked for may come beside what was taken meanwhile, so the window counts thrice."""
        self._window = max(self._window, window)
        self._in_flight = max(self._in_flight, lane.in_flight)
        self._capacity = max(self._capacity, consumers.capacity())
        bound = 3 * self._window + self._window // 8 + 1 + self._in_flight + self._capacity + self._suspects
        memory = lane._lane_memory
        held = [*memory.window.entries.values(), *memory.rows.values()]
        ensure(len(held) <= bound, f"{len(held)} entries are in memory, more than {bound}")
        size = sum(entry.size for entry in held)
        ensure(memory.bytes == size, f"{memory.bytes} bytes are counted, and {size} are in memory")
        lent = [entry.size for entry in held if entry.delivery is not None and entry.delivery.member is not None]
        counted = (memory.lent, memory.lent_bytes)
        ensure(counted == (len(lent), sum(lent)), f"{counted} are counted as lent, instead of {lent}")
