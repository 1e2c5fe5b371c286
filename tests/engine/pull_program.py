"""A program of its own that pulls and settles, for tests that kill it: a line in a file for each message."""

import asyncio
import os
import sys

from milepost import Milepost


async def work(url: str, schema: str, path: str, limit: int, timeout: float) -> None:
    async with Milepost(url, schema=schema) as mp:
        while True:
            tasks = await mp.pull("emails", limit=limit, wait=5, timeout=timeout)
            for task in tasks:
                if task.message.type == "deadly":
                    os._exit(9)
                with open(path, "a") as file:  # noqa: ASYNC230 -- one write, which is atomic
                    file.write(f"{task.message.stream} {task.message.version}\n")
                await asyncio.sleep(0.001)
            await mp.settle(ack=tasks)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
