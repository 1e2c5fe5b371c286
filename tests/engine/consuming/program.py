"""A process of its own with a consumer: says what it gets, and does as its arguments say.

`python program.py URL SCHEMA SUBSCRIPTION HOW [WHERE]`: HOW is `ack`, `hold` (takes and does not settle), or
`die` (ends without a word at a message whose type is `deadly`, and acks the others), or `die late` (the same, and
the consumer wants everything, whatever WHERE says, after a moment).
"""

import asyncio
import os
import signal
import sys

from milepost import Milepost
from milepost.engine.consumers.consumer import Consumer


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def consume(consumer: Consumer, how: str) -> None:
    async for delivery in consumer:
        if how.startswith("die") and delivery.message.type == "deadly":
            os._exit(9)
        say("got", delivery.position, delivery.attempt)
        if how != "hold":
            await delivery.ack()


async def come_late(consumer: Consumer) -> None:
    """Wants everything once the process has the subscription, and has set aside what it does not want yet."""
    while (owned := consumer.dispatcher.owned) is None or not owned.lane.reach or not owned.lane.is_empty:
        await asyncio.sleep(0.01)
    await consumer.configure(where=None)


async def tell_head(mp: Milepost) -> None:
    """Says how far the process knows the log, whenever that is new."""
    known = 0
    while True:
        if mp.log.horizon.position > known:
            known = mp.log.horizon.position
            say("knows", known)
        await asyncio.sleep(0.01)


async def main(url: str, schema: str, name: str, how: str, where: str | None = None) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Milepost(url, schema=schema) as mp, mp.consumer(name, where=where or None) as consumer:
        say("standby" if consumer.standby else "owner")
        if how == "die late":
            await come_late(consumer)
        consuming = asyncio.create_task(consume(consumer, how))
        telling = asyncio.create_task(tell_head(mp))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([consuming, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (consuming, telling):
            task.cancel()
        await asyncio.wait([consuming, telling])
    say("over")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
