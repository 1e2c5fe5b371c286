"""The text of a token: 256 random bits, of which only a hash is stored."""

import hashlib
import secrets

PREFIX = "mp_"
"""What every token begins with, so that one is recognised where it must not be: in a log, in a repository."""
LONGEST = 200
"""Characters; what is longer is no token, and not worth hashing."""


def make_secret() -> str:
    """A new one."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(secret: str) -> bytes:
    """What is stored of it. It has 256 random bits: nothing slower than SHA-256 is needed."""
    return hashlib.sha256(secret.encode()).digest()
