"""The condition that a filter implies, for the database to look at first.

It is a predicate of SQL's JSON path language over a message's properties. Every message that
matches the filter meets it; some that do not may meet it too, so the filter still runs on what
comes back.

JSON path has a third truth value, unknown, for missing members and unlike types. A condition is
built for a part being true and another for it being false, and a negation only changes which of the
two is asked for. So each condition is a plain statement about values that are there, and never the
negation of something unknown.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from milepost.filter.tree import (
    Arithmetic,
    Boolean,
    Comparison,
    Exists,
    Integer,
    Junction,
    Negative,
    Node,
    Not,
    Property,
    String,
)
from milepost.filter.values import Value

__all__ = ["Pushdown", "derive"]


@dataclass(frozen=True, slots=True)
class Pushdown:
    """A condition for `jsonb_path_match(properties, path, variables, true)`."""

    path: str
    """The predicate. It has the names of properties, but no values."""

    variables: dict[str, Value]
    """The values that the predicate refers to, as a JSON object."""


class _Slot(NamedTuple):
    """Where a value goes."""

    value: Value


_Text: TypeAlias = tuple[str | _Slot, ...]
"""A piece of a predicate, with its values still in it."""

_Condition: TypeAlias = _Text | bool
"""A predicate; True where nothing is implied, False where it cannot be so."""

_IMPOSSIBLE: _Text = ("1 == 2",)
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def derive(tree: Node) -> Pushdown | None:
    """The condition that a tree implies, or None if it implies nothing."""
    condition = _condition(tree, True)
    if condition is True:
        return None
    return _with_variables(condition or _IMPOSSIBLE)


def _with_variables(text: _Text) -> Pushdown:
    names: dict[tuple[type, Value], str] = {}
    path = ""
    for piece in text:
        if isinstance(piece, str):
            path += piece
        else:
            # The type keeps 1 and true apart.
            path += "$" + names.setdefault((type(piece.value), piece.value), f"v{len(names)}")
    return Pushdown(path, {name: value for (_, value), name in names.items()})


def _condition(node: Node, wanted: bool) -> _Condition:
    """What holds for a message on which a boolean node has the wanted value."""
    match node:
        case Boolean():
            return node.value is wanted
        case Property():
            return (_member(node), " == true" if wanted else " == false")
        case Exists():
            return (f"{'' if wanted else '!'}exists (", _member(node), ")")
        case Not():
            return _condition(node.operand, not wanted)
        case Junction():
            conditions = [_condition(operand, wanted) for operand in node.operands]
            return _joined("||" if node.decisive is wanted else "&&", conditions)
        case Comparison():
            return _comparison(node, wanted)
        case _:
            return True


def _comparison(node: Comparison, wanted: bool) -> _Condition:
    operator = node.operator if wanted else _OPPOSITE[node.operator]
    match node.left, node.right:
        case (Boolean() as constant, part) | (part, Boolean() as constant):
            if not isinstance(part, Property):
                return _condition(part, constant.value is (operator == "=="))
    left, right = _operand(node.left), _operand(node.right)
    return (*left, f" {operator} ", *right) if left and right else True


def _operand(node: Node) -> _Text | None:
    """A value as a predicate says it, or None if it cannot, or would mean something else."""
    match node:
        case Integer() | Boolean():
            return (_Slot(node.value),)
        case String():
            # PostgreSQL's JSON has no place for a null character.
            return (_Slot(node.value),) if "\0" not in node.value else None
        case Property():
            return (_member(node),)
        case Negative():
            operand = _operand(node.operand)
            return ("(-", *operand, ")") if operand else None
        # A quotient would have a fraction. The others are exact for all numbers that a message can
        # match with.
        case Arithmetic("+" | "-" | "*" | "%" as operator):
            left, right = _operand(node.left), _operand(node.right)
            return ("(", *left, f" {operator} ", *right, ")") if left and right else None
        case _:
            return None


def _member(node: Property | Exists) -> str:
    return f'$."{node.name}"'


def _joined(operator: str, conditions: list[_Condition]) -> _Condition:
    """All of the conditions, or any; one that is the same for each message decides or goes."""
    decisive = operator == "||"
    if decisive in conditions:
        return decisive
    pieces: list[str | _Slot] = []
    for condition in conditions:
        if not isinstance(condition, bool):
            pieces += [f" {operator} " if pieces else "", "(", *condition, ")"]
    return tuple(pieces) or not decisive
