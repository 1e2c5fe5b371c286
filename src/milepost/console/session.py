"""The cookies of the console, and the login session that is sealed into one of them.

No open session is stored, so any server of the same log knows it, also after a restart. The token's text lies in
the cookie under a pad made of its stored hash: the cookie alone does not give the token away, the database alone
is not enough for a cookie, and the time at which it expires cannot be changed. It ends with the token, or at the
logout: then its nonce is stored, so that a copy of the cookie opens nothing on any server.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from time import time

from milepost.server.access.authentication import TokenCache
from milepost.server.access.tokens import StoredToken
from milepost.server.http.asgi import Scope, header

SESSION_COOKIE = "milepost_session"
"""The cookie of a login session."""
BROWSER_COOKIE = "milepost_visit"
"""The cookie that identifies a browser without a login, for its forms."""
FLASH_COOKIE = "milepost_flash"
"""The cookie of the message that the next page shows."""
THEME_COOKIE = "milepost_theme"
"""The cookie of the theme, `light` or `dark`, which the page itself writes."""


def request_cookies(scope: Scope) -> Mapping[str, str]:
    """Return the cookies that the browser sent: the value of each name, as it was sent.

    The cookies of the console need no unquoting. The parser of the standard library unquotes, in a time that grows
    with the square of what a stranger sent.
    """
    cookies = {}
    for cookie in (header(scope, b"cookie") or "").split(";"):
        name, equals, value = cookie.partition("=")
        if equals:
            cookies[name.strip()] = value.strip()
    return cookies


def set_cookie(
    scope: Scope, name: str, value: str, *, path: str, seconds: int | None = None
) -> tuple[bytes, bytes]:
    """Return the header that sets a cookie: out of reach of scripts and of other sites."""
    parts = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Strict"]
    if seconds is not None:
        parts.append(f"Max-Age={seconds}")
    if scope.get("scheme") == "https":
        parts.append("Secure")
    return b"set-cookie", "; ".join(parts).encode("latin-1")


def clear_cookie(scope: Scope, name: str, *, path: str) -> tuple[bytes, bytes]:
    """Return the header that clears a cookie."""
    return set_cookie(scope, name, "", path=path, seconds=0)


SESSION_SECONDS = 12 * 3600
"""Seconds after which a new login is needed."""
ENDED_SESSION_SECONDS = 2.0 * SESSION_SECONDS
"""Seconds for which an ended session is remembered: a cookie lasts longer where a server's clock is behind."""

_NUMBER_BYTES = 8
_NONCE_BYTES = 16
_PAD_BYTES = 64
_HEAD_BYTES = 2 * _NUMBER_BYTES + _NONCE_BYTES


@dataclass(frozen=True)
class ConsoleSession:
    """The login session of a token."""

    token: StoredToken
    nonce: bytes
    """The nonce that tells the sessions of a token apart."""


def seal_session(token: StoredToken, secret: str) -> str:
    """Return the cookie of a new session of a token."""
    ends = int(time()) + SESSION_SECONDS
    head = token.id.to_bytes(_NUMBER_BYTES) + ends.to_bytes(_NUMBER_BYTES) + secrets.token_bytes(_NONCE_BYTES)
    return urlsafe_b64encode(head + _apply_pad(secret.encode().ljust(_PAD_BYTES, b"\0"), head, token)).decode()


async def open_session(cookie: str, token_cache: TokenCache) -> ConsoleSession | None:
    """Return the session of a cookie; None if it is none, has expired, was ended, or its token is not in force."""
    try:
        raw = urlsafe_b64decode(cookie)
    except (Error, ValueError):
        return None
    if len(raw) != _HEAD_BYTES + _PAD_BYTES or int.from_bytes(raw[_NUMBER_BYTES : 2 * _NUMBER_BYTES]) < time():
        return None
    number = int.from_bytes(raw[:_NUMBER_BYTES])
    token = await token_cache.find_by_id(number)
    if token is None:
        return None
    secret = _apply_pad(raw[_HEAD_BYTES:], raw[:_HEAD_BYTES], token).rstrip(b"\0")
    is_its = hmac.compare_digest(hashlib.sha256(secret).digest(), token.hash)
    nonce = raw[2 * _NUMBER_BYTES : _HEAD_BYTES]
    return ConsoleSession(token, nonce) if is_its and await token_cache.is_in_force(token, nonce) else None


def _apply_pad(text: bytes, head: bytes, token: StoredToken) -> bytes:
    """Hide or show a text. The nonce in the head makes sure that no pad is used twice."""
    pad = hmac.digest(token.hash, b"milepost console" + head, "sha512")
    return bytes(one ^ other for one, other in zip(text, pad, strict=True))
