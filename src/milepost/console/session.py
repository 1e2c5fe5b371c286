"""A session: the token of somebody who logged in, sealed into a cookie.

No open session is stored, so any server of the same log knows it, also after a restart. The token's text lies in
the cookie under a pad made of its stored hash: whoever has the cookie alone cannot read the token, whoever has the
database alone cannot make a cookie, and the time at which it ends cannot be changed. It ends with the token, or
when its owner logs out: then its nonce is stored, so that a copy of the cookie opens nothing on any server.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from dataclasses import dataclass
from time import time

from milepost.server.access.doorkeeper import Doorkeeper
from milepost.server.access.tokens import StoredToken

LASTS = 12 * 3600
"""Seconds until one has to log in again."""
ENDED_KEPT_SECONDS = 2.0 * LASTS
"""How long an ended session is remembered: a cookie lasts longer where the clock of a server is behind."""

_NUMBER, _NONCE, _PAD = 8, 16, 64
_HEAD = 2 * _NUMBER + _NONCE


@dataclass(frozen=True)
class Session:
    """Somebody who is logged in."""

    token: StoredToken
    nonce: bytes
    """Which of the token's sessions it is."""


def seal(token: StoredToken, secret: str) -> str:
    """A cookie for whoever has shown this token."""
    ends = int(time()) + LASTS
    head = token.id.to_bytes(_NUMBER) + ends.to_bytes(_NUMBER) + secrets.token_bytes(_NONCE)
    return urlsafe_b64encode(head + _padded(secret.encode().ljust(_PAD, b"\0"), head, token)).decode()


async def opened(cookie: str, doorkeeper: Doorkeeper) -> Session | None:
    """The session of a cookie; None if it is none, is over, was ended, or its token is no longer in force."""
    try:
        raw = urlsafe_b64decode(cookie)
    except (Error, ValueError):
        return None
    if len(raw) != _HEAD + _PAD or int.from_bytes(raw[_NUMBER : 2 * _NUMBER]) < time():
        return None
    number = int.from_bytes(raw[:_NUMBER])
    token = await doorkeeper.numbered(number)
    if token is None:
        return None
    secret = _padded(raw[_HEAD:], raw[:_HEAD], token).rstrip(b"\0")
    is_its = hmac.compare_digest(hashlib.sha256(secret).digest(), token.hash)
    nonce = raw[2 * _NUMBER : _HEAD]
    return Session(token, nonce) if is_its and await doorkeeper.is_in_force(token, nonce) else None


def _padded(text: bytes, head: bytes, token: StoredToken) -> bytes:
    """Hides or shows a text: the nonce in the head sees to it that no pad is used twice."""
    pad = hmac.digest(token.hash, b"milepost console" + head, "sha512")
    return bytes(one ^ other for one, other in zip(text, pad, strict=True))
