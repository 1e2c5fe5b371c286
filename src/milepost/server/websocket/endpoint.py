"""Where consumers connect: `/v1/subscriptions/{group}/{name}/consume`."""

import logging

from milepost.errors import MilepostError
from milepost.server.access.authentication import Authenticator
from milepost.server.access.permissions import TokenRole
from milepost.server.http.asgi import SECURITY_HEADERS, Receive, Scope, Send, decode_path_names
from milepost.server.http.origin import is_local_request
from milepost.server.limits import Limits
from milepost.server.problems import NOT_FOUND, PROBLEM_MEDIA_TYPE, RequestRefused, problem_response
from milepost.server.websocket.registry import ConnectionRegistry
from milepost.server.websocket.session import ConsumerSession
from milepost.server.websocket.socket import FrameSocket

logger = logging.getLogger("milepost.server")

CONSUME_PATH = "/v1/subscriptions/{group}/{name}/consume"
REFUSED_CLOSE_CODE = 1008
"""Where a refusal cannot be answered in HTTP."""


class ConsumerEndpoint:
    """An ASGI application for WebSockets, whose path is routed already."""

    def __init__(self, connections: ConnectionRegistry, authenticator: Authenticator, limits: Limits) -> None:
        self._connections = connections
        self._authenticator = authenticator
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Converses with a client, or refuses it."""
        await receive()
        try:
            address = _subscription_address(scope["path"])
            principal = await self._authenticator.authenticate(scope, TokenRole.CONSUME)
            await self._connections.scope_guard(principal).check_subscription(*address)
            self._connections.check_room()
        except Exception as error:
            if not isinstance(error, RequestRefused | MilepostError):
                logger.exception("a consumer could not connect")
            await refuse_upgrade(scope, send, error)
            return
        socket = FrameSocket(scope, receive, send, self._limits)
        try:
            with self._connections.count_connection():
                await socket.accept()
                async with self._connections.running():
                    await ConsumerSession(
                        socket, self._connections, address, principal, is_local=is_local_request(scope)
                    ).run()
        except OSError:
            # It has gone.
            return
        except Exception:
            logger.exception("a connection of a consumer failed")


async def refuse_upgrade(scope: Scope, send: Send, error: Exception) -> None:
    """Answers instead of becoming a WebSocket."""
    answer = problem_response(error)
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": REFUSED_CLOSE_CODE, "reason": str(answer.status)})
        return
    headers = {"content-type": PROBLEM_MEDIA_TYPE, **answer.headers}
    encoded = [
        *SECURITY_HEADERS.items(),
        *((name.encode(), value.encode("latin-1")) for name, value in headers.items()),
    ]
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": encoded})
    await send({"type": "websocket.http.response.body", "body": answer.body})


def _subscription_address(path: str) -> tuple[str, str]:
    """Group and name of the subscription that a path is for."""
    match path.split("/"):
        case ["", "v1", "subscriptions", group, name, "consume"] if group and name:
            found = decode_path_names({"group": group, "name": name})
            return found["group"], found["name"]
    raise RequestRefused(NOT_FOUND, "There is no WebSocket here: consumers connect to …/{group}/{name}/consume")
