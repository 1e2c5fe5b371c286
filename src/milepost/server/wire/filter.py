"""Filters to check and to try."""

from typing import Annotated, Any

import msgspec

from milepost.filter.filter import MAX_BYTES
from milepost.log.message import Property
from milepost.server.wire.values import described


class FilterToCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expression over a message's properties."""

    where: Annotated[str, described(maxLength=MAX_BYTES)]


class FilterToTry(FilterToCheck, frozen=True, forbid_unknown_fields=True):
    """An expression, and the properties of a message."""

    properties: dict[str, Property]


class CheckedFilter(msgspec.Struct, frozen=True):
    """A filter that can be used."""

    canonical: str
    """The one text of all filters that differ only in spacing, spelling and parentheses."""
    properties: list[str]
    """The properties that it mentions."""


class Match(msgspec.Struct, frozen=True):
    """Whether a message with these properties matches."""

    matches: bool


class Explained(msgspec.Struct, frozen=True):
    """What each part of a filter came to on these properties."""

    matches: bool
    explanation: dict[str, Any]
    """The parts as a tree: `text`; `status`: `value`, `error`, `not evaluated`; `value` or `error`; `children`."""
