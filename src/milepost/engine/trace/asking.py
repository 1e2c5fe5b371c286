"""Asks workers what they have in hand: a message that is handled without trouble writes nothing when it starts."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from milepost.engine.trace.whereabouts import Whereabouts
from milepost.progress.tracing import Tracing, Worker

ANSWER = 0.5
"""Seconds that workers have to answer; one whose event loop is blocked, or that is dead, does not."""
LOOKS = (0.005, 0.05)
"""Shortest and longest time between two looks for answers, in seconds."""


class Asking:
    """Asks those who may have messages in hand without anything being stored of it."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    async def ask(self, found: Sequence[Whereabouts]) -> set[Worker] | None:
        """Who has not answered; None: nobody had to be asked."""
        asked = {worker for each in found for worker in _who_may_have(each)}
        if not asked:
            return None
        since = await self._tracing.ask()
        loop = asyncio.get_running_loop()
        over = loop.time() + ANSWER
        pause, longest = LOOKS
        while asked and loop.time() < over:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            asked -= await self._tracing.answered(since)
        return asked


def without_answer(found: Whereabouts, silent: set[Worker]) -> Whereabouts:
    """The same, with a word about who has it in hand perhaps and does not say so."""
    who = next((worker for worker in _who_may_have(found) if worker in silent), None)
    if who is None or found.note is not None:
        return found
    words = "does not answer" if found.flight else "may have it in hand, and does not answer"
    return replace(found, note=f"{who.name} {words}")


def _who_may_have(found: Whereabouts) -> Iterator[Worker]:
    subscription, row = found.subscription, found.row
    if found.flight is not None:
        yield Worker(subscription.id, found.flight.worker)
        return
    is_due = row is not None and row.due is not None and row.due <= subscription.now
    # One is unsure also because nobody here knows its lane: a worker that has it in hand knows more.
    may_be_in_hand = found.state == "not reached" or (found.state == "unsure" and not found.reached)
    if not may_be_in_hand and not (found.state == "retrying" and is_due):
        return
    lanes = subscription.lanes if found.lane is None else subscription.lanes[found.lane : found.lane + 1]
    for lane in lanes:
        if lane.owner is not None:
            yield Worker(subscription.id, lane.owner)
