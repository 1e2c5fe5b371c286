"""A word on what was just done, or why not: it travels in a cookie to the page that comes next."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import Literal

import msgspec

Tone = Literal["done", "problem"]

LONGEST = 1500
"""Characters: a cookie has to stay small."""
SECONDS = 30
"""After which nobody wants to know any more."""


class Flash(msgspec.Struct, frozen=True):
    """What is said."""

    words: str
    tone: Tone = "done"

    def encoded(self) -> str:
        """As the value of a cookie."""
        short = Flash(self.words if len(self.words) <= LONGEST else f"{self.words[:LONGEST]}…", self.tone)
        return urlsafe_b64encode(msgspec.json.encode(short)).decode()


def flash_of(cookie: str | None) -> Flash | None:
    """What a cookie says."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(cookie), type=Flash) if cookie else None
    except (Error, ValueError, RecursionError, msgspec.DecodeError):
        return None
