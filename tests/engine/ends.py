"""A program whose handler ends it. Arguments: a URL and a schema."""

import asyncio
import logging
import sys
from typing import Any

from milepost import Message, Milepost

mp = Milepost(sys.argv[1], schema=sys.argv[2])
logging.basicConfig(level=logging.INFO)


@mp.subscription("orders", category="order")
async def handle(message: Message[Any]) -> None:
    sys.exit(3)


asyncio.run(mp.run())
