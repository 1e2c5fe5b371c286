"""The three types of the language, and what a property's raw value is in it."""

from enum import Enum
from typing import TypeAlias

from milepost.names import MAX_INTEGER, MIN_INTEGER

__all__ = ["Kind", "Value", "is_integer", "kind_of", "value_of"]

Value: TypeAlias = bool | int | str
"""A value of the language: a boolean, an integer of 64 bits, or a string."""


class Kind(Enum):
    """A type of the language; the value says it in words."""

    INTEGER = "an integer"
    STRING = "a string"
    BOOLEAN = "a boolean"


def is_integer(number: int) -> bool:
    """Whether a number fits into 64 bits with a sign."""
    return MIN_INTEGER <= number <= MAX_INTEGER


def kind_of(value: Value) -> Kind:
    """The type of a value. A boolean is not an integer here."""
    if isinstance(value, bool):
        return Kind.BOOLEAN
    return Kind.INTEGER if isinstance(value, int) else Kind.STRING


def value_of(raw: object) -> Value | None:
    """What a property's raw value is in the language, or None if it is nothing there.

    An `IntEnum` or `StrEnum` counts as what it holds, whatever methods it overrides.
    """
    # `isinstance` would ask the object itself for its class, and an object may lie or raise.
    kind = type(raw)
    if issubclass(kind, bool):
        return raw is True
    if issubclass(kind, str):
        return str.__str__(raw)
    if issubclass(kind, int):
        number = int.__int__(raw)  # type: ignore[arg-type]
        return number if is_integer(number) else None
    return None
