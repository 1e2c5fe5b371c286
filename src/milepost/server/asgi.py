"""The types of ASGI, as far as the server looks at them itself."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; None if the request has none of this name."""
    for known, value in scope["headers"]:
        if known == name:
            return str(value.decode("latin-1"))
    return None


async def left(receive: Receive) -> None:
    """Returns when whoever made a request has gone, or has the answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


def client_of(scope: Scope) -> str:
    """The address that a request comes from; empty where that is not known, as on a Unix socket."""
    client = scope.get("client")
    return client[0] if client else ""
