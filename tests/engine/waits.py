"""A program of its own whose handler does not end, and says what it hears."""

import asyncio
import sys
from typing import Any

from milepost import Message, Milepost


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(url: str, schema: str) -> None:
    mp = Milepost(url, schema=schema)

    @mp.subscription("waits", category="order", lanes=1)
    async def wait(message: Message[Any]) -> None:
        say("begun")
        while True:
            await asyncio.sleep(0.05)
            say("waits")

    asyncio.run(mp.run(grace=3600))


if __name__ == "__main__":
    main(*sys.argv[1:3])
