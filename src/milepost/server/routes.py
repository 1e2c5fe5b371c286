"""What is asked over HTTP: paths and handlers, made once for all servers of a process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from traceback import format_exc
from typing import Any

from litestar import Litestar, Router, types
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from milepost.server import deliveries, filters, follow, health, messages, nodes, pull, subscriptions, trace
from milepost.server.description import DESCRIPTION_HANDLERS, OPENAPI_CONFIG, ApiDescription
from milepost.server.http.asgi import Receive, Scope, Send
from milepost.server.http.handlers import admit_request, answer_error
from milepost.server.http.json_body import JsonRequest

API_PARTS: tuple[tuple[str, str, Sequence[Any]], ...] = (
    ("/v1", "messages", (*messages.HANDLERS, *follow.HANDLERS, *trace.HANDLERS)),
    ("/v1/subscriptions", "subscriptions", subscriptions.HANDLERS),
    ("/v1/subscriptions", "deliveries", deliveries.HANDLERS),
    ("/v1", "pulling", pull.HANDLERS),
    ("/v1/filter", "filters", filters.HANDLERS),
    ("/v1", "nodes", nodes.HANDLERS),
    ("/", "health", (*health.HANDLERS, *DESCRIPTION_HANDLERS)),
)
"""What there is: paths, and what they are about."""
DEPENDENCY_NAMES = (
    "mp",
    "limits",
    "shutdown",
    "authenticator",
    "connections",
    "followers",
    "readiness",
    "description",
    "scope_guard",
)
"""What handlers are given by these names; `scope_guard` is of whoever asks."""


def make_application(openapi_config: OpenAPIConfig | None = None) -> Litestar:
    """All handlers; what they are given is in the state of each request."""
    return Litestar(
        [Router(path, route_handlers=handlers, tags=[about]) for path, about, handlers in API_PARTS],
        dependencies={name: _dependency(name) for name in DEPENDENCY_NAMES},
        exception_handlers={Exception: answer_error},
        guards=[admit_request],
        logging_config=None,
        openapi_config=openapi_config,
        request_class=JsonRequest,
        # The gate looks at that, while the body arrives.
        request_max_body_size=None,
    )


def _dependency(name: str) -> Provide:
    def given(scope: types.Scope) -> Any:
        return scope["state"][name]

    return Provide(given, sync_to_thread=False)


_shared_application = cache(make_application)


@cache
def describe_api(*, asks_for_tokens: bool) -> ApiDescription:
    """Describe all that can be asked of a server that lets in only who has a token, or everybody."""
    return ApiDescription(partial(make_application, OPENAPI_CONFIG), asks_for_tokens=asks_for_tokens)


class ApiApplication:
    """The ASGI application of one server, which runs within a block of its own."""

    def __init__(self, given: Mapping[str, Any], running: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._given = given
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or begins and ends with the program that serves."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            scope["state"] = {**scope.get("state", {}), **self._given}
            await _shared_application()(scope, receive, send)  # type: ignore[arg-type]

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        stage = "startup"
        try:
            _shared_application()
            async with self._running():
                await send({"type": "lifespan.startup.complete"})
                stage = "shutdown"
                await receive()
        except BaseException:
            await send({"type": f"lifespan.{stage}.failed", "message": format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})
