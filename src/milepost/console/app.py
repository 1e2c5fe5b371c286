"""The console as an application, beside what the server gives to programs."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar, Request, Response, Router
from litestar.di import Provide

from milepost.console.admission import Admission
from milepost.console.failing import Failing
from milepost.console.live import Live
from milepost.console.pages import ENTRIES, PAGES
from milepost.console.snapshot import Observer
from milepost.console.visit import Visit
from milepost.console.watch import Watch
from milepost.server.asgi import Receive, Scope, Send
from milepost.server.beside import PREFIX, Served


class Console:
    """An ASGI application for the paths that begin with `/console`."""

    def __init__(self, served: Served) -> None:
        self.watch = Watch(Observer(served.mp).look)
        admission = Admission(served, Live(self.watch, served.stopping), ENTRIES)
        failing = Failing(admission)

        def on_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
            return failing.answer(request, error)

        inner: Any = Litestar(
            [Router(PREFIX, route_handlers=[handler for page in PAGES for handler in page.HANDLERS])],
            dependencies={"visit": Provide(_visit, sync_to_thread=False)},
            exception_handlers={Exception: on_error},
            guards=[admission.admit],
            logging_config=None,
            openapi_config=None,
            # The gate looks at that, while the body arrives.
            request_max_body_size=None,
        )
        self._inner = inner

    def running(self) -> AbstractAsyncContextManager[None]:
        """Looks now and then for as long as the server runs, so that charts have a past when somebody comes."""
        return self.watch.running()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        await self._inner(scope, receive, send)


def _visit(request: Request[Any, Any, Any]) -> Visit:
    """What was made of the request when it was let in."""
    visit: Visit = request.scope["state"]["visit"]
    return visit
