"""A program with a consumer: takes and acks through a list of nodes, and says what it took and settled."""

import asyncio
import signal
import sys

import milepost
from milepost import ConsumerClosed, Lost


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(urls: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with milepost.connect(urls, patience=60) as client:
        async with client.consumer("shipping", capacity=20) as consumer:
            stopping = asyncio.create_task(stop.wait())
            say("ready")
            while not stop.is_set():
                taking = asyncio.create_task(consumer.next_batch(5))
                await asyncio.wait([taking, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    break
                for delivery in taking.result():
                    say("took", delivery.position, delivery.attempt)
                    await asyncio.sleep(0.005)
                    try:
                        await delivery.ack()
                        say("done", delivery.position)
                    except Lost:
                        say("lost", delivery.position)
                    except ConsumerClosed as closed:
                        say("closed", closed.reason)


asyncio.run(main(sys.argv[1:]))
