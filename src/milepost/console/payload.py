"""A payload as people read it."""

import msgspec

from milepost.server.counting import count_containers, depth_of

LONGEST = 16_384
"""Characters that are shown at first."""

INDENT = 2
MAX_INDENT_BYTES = 4 * 2**20
"""How many spaces a payload may be given at the most."""


class Payload(msgspec.Struct, frozen=True):
    """What is shown of a payload."""

    text: str
    left: int
    """How many characters are left out."""


def payload_of(raw: str, longest: int | None = LONGEST) -> Payload:
    """JSON with a line for each value; what is no JSON, or would become very long by that, as it is."""
    try:
        text = msgspec.json.format(raw, indent=INDENT) if _is_handy(raw) else raw
    except (msgspec.DecodeError, RecursionError):
        text = raw
    if longest is None or len(text) <= longest:
        return Payload(text, 0)
    return Payload(text[:longest], len(text) - longest)


def _is_handy(raw: str) -> bool:
    """Whether its lines stay short: values that are nested deeply are indented by a thousand spaces each."""
    encoded = raw.encode()
    containers = count_containers(encoded)
    lines = encoded.count(b",") + 2 * containers + 1
    if INDENT * lines * containers <= MAX_INDENT_BYTES:
        return True
    return INDENT * lines * depth_of(encoded) <= MAX_INDENT_BYTES
