"""A program of its own whose handlers do not end: they block a thread, or the event loop."""

import asyncio
import sys
import threading
import time
from typing import Any

from milepost import Message, Milepost, Retry


def main(url: str, schema: str, kind: str) -> None:
    mp = Milepost(url, schema=schema, concurrency=2)
    options: dict[str, Any] = {"category": "order", "timeout": 0.3, "lanes": 2, "retry": Retry(delay=3600)}
    if kind == "plain":

        @mp.subscription("stuck", **options)
        def wait(message: Message[Any]) -> None:
            threading.Event().wait()

    elif kind == "blocked":

        @mp.subscription("stuck", **options)
        async def block(message: Message[Any]) -> None:
            time.sleep(3600)  # noqa: ASYNC251 - it is what must not be done

    else:

        @mp.subscription("stuck", **options)
        async def insist(message: Message[Any]) -> None:
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue

    asyncio.run(mp.run(grace=0.5))


if __name__ == "__main__":
    main(*sys.argv[1:4])
