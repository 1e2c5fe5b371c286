"""A program of its own for tests that kill it: appends a line for each message to a file.

A message says how many seconds it takes.
"""

import asyncio
import os
import sys
from typing import Any

from milepost import Context, Message, Milepost, Retry


def main(url: str, schema: str, path: str, lease: float) -> None:
    mp = Milepost(url, schema=schema, concurrency=4)

    @mp.subscription("killed", category="order", lanes=4, lease=lease, retry=Retry(attempts=3, delay=0.05))
    async def handle(message: Message[Any], context: Context) -> None:
        await asyncio.sleep(message.data or 0.001)
        if message.type == "deadly":
            os._exit(9)
        with open(path, "a") as file:  # noqa: ASYNC230 -- one write, which is atomic
            file.write(f"{message.stream} {message.version} {context.attempt}\n")

    asyncio.run(mp.run(grace=5))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
