"""The page about the protocol says what is so."""

import json
import re
from pathlib import Path

from milepost import Milepost, NewMessage
from milepost.server.websocket.frames import AnyClientFrame
from milepost.server.websocket.registry import RESUME_SECONDS
from milepost.server.websocket.session_end import CLOSE_CODES
from milepost.wire.frames import ServerFrame
from server.websocket.conftest import Serving
from server.websocket.talking import talking

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "websocket.md").read_text()
EXCHANGE = re.compile(r"^```exchange\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_the_exchange_is_literally_so(mp: Milepost, server: Serving) -> None:
    for n, amount in ((1, 20), (2, 30), (3, 40)):
        await mp.append(f"order-{n}", NewMessage("order.placed", {"n": n}, properties={"amount": amount}))
    server.app.connections.resume_seconds = RESUME_SECONDS
    [exchange] = EXCHANGE.findall(PAGE)
    async with talking(server.address, subprotocols=["milepost.v1"]) as talk:
        for line in exchange.splitlines():
            side, _, said = line.partition(" ")
            if side == "→":
                json.loads(said)
                await talk.connection.send(said)
            elif said.startswith("close"):
                assert await talk.closed() == int(said.removeprefix("close "))
            else:
                heard = await talk.connection.recv()
                assert re.fullmatch(re.escape(said).replace("…", ".*?"), str(heard)), (said, heard)


def test_every_frame_and_reason_is_told() -> None:
    types = {kind.__struct_config__.tag for kind in (*AnyClientFrame.__args__, *ServerFrame.__subclasses__())}
    rows = set(re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE))
    ours = {"left", "closed"}
    assert rows == types | {"deliveries"} | (set(CLOSE_CODES) - ours)
    codes = re.findall(r"^\| `([a-z ]+)` \| (\d{4}) \|", PAGE, re.MULTILINE)
    assert {reason: int(code) for reason, code in codes} == {
        reason: code for reason, code in CLOSE_CODES.items() if reason not in ours
    }
