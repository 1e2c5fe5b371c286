"""JSON that a person typed: what is wrong with it is said in words, with its place."""

import json
from typing import Any

import msgspec

from milepost.errors import InvalidMessage
from milepost.server.counting import check_containers, check_depth, count_containers
from milepost.server.limits import Limits


def object_of(field: str, text: str, limits: Limits) -> dict[str, Any]:
    """An object; nothing typed is an empty one."""
    if not text.strip():
        return {}
    found = msgspec.json.decode(checked_json(field, text, limits))
    if not isinstance(found, dict):
        raise InvalidMessage(field, 'an object is wanted, such as {"region": "EU"}')
    return found


def checked_json(field: str, text: str, limits: Limits) -> bytes:
    """JSON that can be stored as it is; if it is none, the place where it goes wrong."""
    try:
        encoded = text.encode()
        check_containers(field, count_containers(encoded), limits.containers)
        check_depth(field, encoded, limits.depth)
        msgspec.json.decode(encoded)
    except RecursionError:
        raise InvalidMessage(field, "it is nested too deeply") from None
    except (UnicodeError, msgspec.DecodeError) as error:
        raise InvalidMessage(field, f"this is no JSON: {_place(text) or error}") from None
    return encoded


def _place(text: str) -> str | None:
    """What the standard library says, which knows lines and columns."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error.msg[:1].lower()}{error.msg[1:]}, in line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):
        return None
    return None
