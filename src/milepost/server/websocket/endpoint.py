"""Where consumers connect: `/v1/subscriptions/{group}/{name}/consume`."""

import logging

from milepost.errors import MilepostError
from milepost.server.access.entrance import Entrance
from milepost.server.access.role import Role
from milepost.server.asgi import Receive, Scope, Send
from milepost.server.headers import HEADERS
from milepost.server.hosts import is_local
from milepost.server.limits import Limits
from milepost.server.problems import MEDIA_TYPE, NOT_FOUND, Refused, answer_to
from milepost.server.segments import names
from milepost.server.websocket.conversation import Conversation
from milepost.server.websocket.hall import Hall
from milepost.server.websocket.wire import Wire

logger = logging.getLogger("milepost.server")

CONSUME = "/v1/subscriptions/{group}/{name}/consume"
FORBIDDEN_CODE = 1008
"""Where a refusal cannot be answered in HTTP."""


class Endpoint:
    """An ASGI application for WebSockets, whose path is routed already."""

    def __init__(self, hall: Hall, entrance: Entrance, limits: Limits) -> None:
        self._hall = hall
        self._entrance = entrance
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Converses with a client, or refuses it."""
        await receive()
        try:
            address = _address(scope["path"])
            visitor = await self._entrance.visitor(scope, Role.CONSUME)
            await self._hall.reach(visitor).check_subscription(*address)
            self._hall.check_room()
        except Exception as error:
            if not isinstance(error, Refused | MilepostError):
                logger.exception("a consumer could not connect")
            await refuse(scope, send, error)
            return
        wire = Wire(scope, receive, send, self._limits)
        try:
            with self._hall.connected():
                await wire.accept()
                async with self._hall.running():
                    await Conversation(wire, self._hall, address, visitor, is_local=is_local(scope)).run()
        except OSError:
            # It has gone.
            return
        except Exception:
            logger.exception("a connection of a consumer failed")


async def refuse(scope: Scope, send: Send, error: Exception) -> None:
    """Answers instead of becoming a WebSocket."""
    answer = answer_to(error)
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": FORBIDDEN_CODE, "reason": str(answer.status)})
        return
    headers = {"content-type": MEDIA_TYPE, **answer.headers}
    encoded = [*HEADERS.items(), *((name.encode(), value.encode("latin-1")) for name, value in headers.items())]
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": encoded})
    await send({"type": "websocket.http.response.body", "body": answer.body})


def _address(path: str) -> tuple[str, str]:
    """Group and name of the subscription that a path is for."""
    match path.split("/"):
        case ["", "v1", "subscriptions", group, name, "consume"] if group and name:
            found = names({"group": group, "name": name})
            return found["group"], found["name"]
    raise Refused(NOT_FOUND, "There is no WebSocket here: consumers connect to …/{group}/{name}/consume")
