"""What the console answers with: a page, or the way to another."""

from collections.abc import Sequence

from milepost.server.asgi import Receive, Scope, Send

Header = tuple[bytes, bytes]

HEADERS: Sequence[Header] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    # Without a referrer a browser does not say either where a form comes from.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""What every page has beside what all answers have: nothing comes from elsewhere, nothing inline runs."""


class Answer:
    """An ASGI application that answers one request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        raise NotImplementedError


class Page(Answer):
    """An answer that is there as a whole."""

    def __init__(
        self,
        body: bytes,
        *,
        status: int = 200,
        kind: str = "text/html; charset=utf-8",
        headers: Sequence[Header] = (),
    ) -> None:
        self.body = body
        self.status = status
        self.headers: Sequence[Header] = (
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            *HEADERS,
            *headers,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


def elsewhere(path: str, *, headers: Sequence[Header] = ()) -> Page:
    """Leads to another page, which is asked for with GET."""
    return Page(b"", status=303, headers=[(b"location", path.encode("ascii")), *headers])
