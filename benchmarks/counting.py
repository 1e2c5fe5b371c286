"""How fast processes are that share a work: what each has done, and when."""

from time import monotonic, sleep

from benchmarks.processes import PATIENCE, Processes

LOOK = 0.05
"""Seconds between two looks at how far the processes are."""


class Counter:
    """What a process has handled, and when."""

    def __init__(self) -> None:
        self.handled = 0
        self.first = 0.0
        self.last = 0.0

    def note(self) -> None:
        """One more."""
        self.last = monotonic()
        if not self.handled:
            self.first = self.last
        self.handled += 1


def rate_of(processes: Processes, count: int) -> float:
    """Messages a second of processes that answer with their counters, from the first message to the last."""
    deadline = monotonic() + PATIENCE
    while True:
        processes.send("how far")
        counters: list[Counter] = processes.receive(PATIENCE)
        handled = sum(counter.handled for counter in counters)
        if handled >= count:
            break
        if monotonic() > deadline:
            raise TimeoutError(f"{handled:,} of {count:,} messages were handled within {PATIENCE:.0f} s")
        sleep(LOOK)
    if handled > count:
        raise RuntimeError(f"{handled:,} messages were handled instead of {count:,}")
    first = min(counter.first for counter in counters if counter.handled)
    return handled / (max(counter.last for counter in counters) - first)
