"""A client that finds its way between servers, as one in any language would."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from websockets.exceptions import WebSocketException

from server.websocket.talking import Frame, Talk, talking

HOPS = 4
"""After so many in a row it stays where it is, and waits."""


class Follower:
    """Takes and acks whatever comes, wherever it has to go for it."""

    def __init__(self, addresses: Sequence[str], **hello: Any) -> None:
        self.addresses = list(addresses)
        self.hello = hello
        self.got: list[int] = []
        """The numbers of the orders, as often as they came."""
        self.acked: Counter[int] = Counter()
        """Those whose ack was answered."""
        self.path: list[str] = []
        """Where it has been welcome."""
        self.standby = False
        self._next = self.addresses[0]
        self._task = asyncio.create_task(self._live())

    async def stop(self) -> None:
        """Ends it, and raises what went wrong."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self._task.cancelled() and (error := self._task.exception()):
            raise error

    async def _live(self) -> None:
        avoid: list[str] = []
        hops = 0
        while True:
            address = self._next
            self._next = self.addresses[(self.addresses.index(address) + 1) % len(self.addresses)]
            try:
                async with talking(address) as talk:
                    await talk.say("hello", avoid=avoid, **self.hello)
                    end = await self._take(address, talk)
            except (OSError, EOFError, WebSocketException):
                avoid = [*avoid, address][-5:]
                await asyncio.sleep(0.05)
                continue
            if end["type"] == "problem":
                await asyncio.sleep(0.05)
                continue
            hops = hops + 1 if end["reason"] == "moved" else 0
            avoid = avoid if hops < HOPS else [*avoid, end["to"]]
            self._next = end["to"] or self._next

    async def _take(self, address: str, talk: Talk) -> Frame:
        while True:
            frame: Frame = json.loads(await talk.connection.recv())
            match frame["type"]:
                case "welcome":
                    self.path.append(address)
                    self.standby = frame["standby"]
                case "standby":
                    self.standby = frame["standby"]
                case "deliveries":
                    await self._settle(talk, frame["deliveries"])
                case "settled":
                    self.acked.update(frame["ref"] and map(int, frame["ref"].split()))
                case "end" | "problem":
                    return frame

    async def _settle(self, talk: Talk, deliveries: list[Frame]) -> None:
        for each in deliveries:
            n = each["message"]["data"]["n"]
            self.got.append(n)
            await talk.say("settle", ref=str(n), ack=[each["id"]])
