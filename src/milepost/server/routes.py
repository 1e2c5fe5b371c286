"""What is asked over HTTP: paths and handlers, made once for all servers of a process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from traceback import format_exc
from typing import Any

from litestar import Litestar, Router, types
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from milepost.server.asgi import Receive, Scope, Send
from milepost.server.description import CONFIG, Description
from milepost.server.http import (
    consuming,
    deliveries,
    describing,
    filters,
    following,
    health,
    messages,
    nodes,
    pulling,
    subscriptions,
    tracing,
)
from milepost.server.http.admission import admit
from milepost.server.http.failing import on_error
from milepost.server.http.request import JsonRequest

PARTS: tuple[tuple[str, str, Sequence[Any]], ...] = (
    ("/v1", "messages", (*messages.HANDLERS, *following.HANDLERS, *tracing.HANDLERS)),
    ("/v1/subscriptions", "subscriptions", subscriptions.HANDLERS),
    ("/v1/subscriptions", "deliveries", (*deliveries.HANDLERS, *consuming.HANDLERS)),
    ("/v1", "pulling", pulling.HANDLERS),
    ("/v1/filter", "filters", filters.HANDLERS),
    ("/v1", "nodes", nodes.HANDLERS),
    ("/", "health", (*health.HANDLERS, *describing.HANDLERS)),
)
"""What there is: paths, and what they are about."""
GIVEN = ("mp", "limits", "stopping", "entrance", "hall", "followers", "readiness", "description", "reach")
"""What handlers are given by these names; `reach` is of whoever asks."""


def application(openapi_config: OpenAPIConfig | None = None) -> Litestar:
    """All handlers; what they are given is in the state of each request."""
    return Litestar(
        [Router(path, route_handlers=handlers, tags=[about]) for path, about, handlers in PARTS],
        dependencies={name: _given(name) for name in GIVEN},
        exception_handlers={Exception: on_error},
        guards=[admit],
        logging_config=None,
        openapi_config=openapi_config,
        request_class=JsonRequest,
        # The gate looks at that, while the body arrives.
        request_max_body_size=None,
    )


def _given(name: str) -> Provide:
    def given(scope: types.Scope) -> Any:
        return scope["state"][name]

    return Provide(given, sync_to_thread=False)


_application = cache(application)


@cache
def description(*, asks_for_tokens: bool) -> Description:
    """Describe all that can be asked of a server that lets in only who has a token, or everybody."""
    return Description(partial(application, CONFIG), asks_for_tokens=asks_for_tokens)


class Routes:
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
            await _application()(scope, receive, send)  # type: ignore[arg-type]

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        stage = "startup"
        try:
            _application()
            async with self._running():
                await send({"type": "lifespan.startup.complete"})
                stage = "shutdown"
                await receive()
        except BaseException:
            await send({"type": f"lifespan.{stage}.failed", "message": format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})
