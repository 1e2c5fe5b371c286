"""Mount an application for people, such as the console, beside the API of a server."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from milepost.app import Milepost
from milepost.server.access.authentication import Authenticator, TokenCache
from milepost.server.http.asgi import Application, Receive, Scope, Send, header
from milepost.server.shutdown import Shutdown

CONSOLE_PATH_PREFIX = "/console"
"""What the paths of all pages begin with."""


@dataclass(frozen=True, kw_only=True)
class ServerParts:
    """What a server is made of, for whoever adds pages to it."""

    mp: Milepost
    authenticator: Authenticator
    token_cache: TokenCache
    shutdown: Shutdown


class PagesApplication(Protocol):
    """An ASGI application that has something to do besides answering."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Does it within this block, which is as long as the server runs."""
        ...


PagesFactory: TypeAlias = Callable[[ServerParts], PagesApplication]
"""Makes an application for the paths that begin with `CONSOLE_PATH_PREFIX`."""


def is_page_path(path: str) -> bool:
    """Whether a path is one of a page."""
    return path == CONSOLE_PATH_PREFIX or path.startswith(f"{CONSOLE_PATH_PREFIX}/")


class PagesMount:
    """An ASGI application made of two: a browser that asks for nothing in particular is led to the pages."""

    def __init__(self, pages: Application, others: Application) -> None:
        self._pages = pages
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets one of them answer."""
        if scope["type"] != "http":
            await self._others(scope, receive, send)
        elif scope["path"] in ("", "/") and "text/html" in (header(scope, b"accept") or ""):
            where = f"{str(scope.get('root_path', '')).rstrip('/')}{CONSOLE_PATH_PREFIX}"
            headers = [(b"location", where.encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 303, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await (self._pages if is_page_path(scope["path"]) else self._others)(scope, receive, send)
