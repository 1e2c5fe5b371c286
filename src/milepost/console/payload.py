"""A payload as people read it."""

import msgspec

LONGEST = 16_384
"""Characters that are shown at first."""


class Payload(msgspec.Struct, frozen=True):
    """What is shown of a payload."""

    text: str
    left: int
    """How many characters are left out."""


def payload_of(raw: str, longest: int | None = LONGEST) -> Payload:
    """JSON with a line for each value; what is no JSON, as it is."""
    try:
        text = msgspec.json.format(raw, indent=2)
    except (msgspec.DecodeError, RecursionError):
        text = raw
    if longest is None or len(text) <= longest:
        return Payload(text, 0)
    return Payload(text[:longest], len(text) - longest)
