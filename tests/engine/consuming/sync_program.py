"""A process without asyncio that takes two messages, and waits for a third until it is interrupted.

`python sync_program.py URL SCHEMA`
"""

import sys

from milepost import Milepost


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(url: str, schema: str) -> None:
    mp = Milepost(url, schema=schema)
    consumer = mp.sync.consumer("shipping")
    held = []
    try:
        with consumer:
            for delivery in consumer:
                held.append(delivery)
                if len(held) == 2:
                    say("has", len(held))
    except KeyboardInterrupt:
        say("interrupted,", consumer.closed)


if __name__ == "__main__":
    main(*sys.argv[1:])
