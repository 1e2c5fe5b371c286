"""The one text of all filters that differ only in how they are written."""

from milepost.filter.parser import PRECEDENCE, UNARY_PRECEDENCE
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

__all__ = ["canonical", "literal"]

_TIGHTEST_PRECEDENCE = UNARY_PRECEDENCE + 1


def canonical(node: Node) -> str:
    """The text of a tree with single spaces, C's operators and no parentheses to spare."""
    match node:
        case Integer() | String() | Boolean():
            return literal(node.value)
        case Property():
            return node.name
        case Exists():
            return f"exists({node.name})"
        case Not() | Negative():
            prefix = "!" if isinstance(node, Not) else "-"
            return prefix + _enclosed(node.operand, canonical(node.operand), UNARY_PRECEDENCE)
        case Arithmetic() | Comparison():
            precedence = PRECEDENCE[node.operator]
            left = _enclosed(node.left, canonical(node.left), precedence)
            right = _enclosed(node.right, canonical(node.right), precedence + 1)
            return f"{left} {node.operator} {right}"
        case Junction():
            precedence = PRECEDENCE[node.operator]
            texts = [_enclosed(operand, canonical(operand), precedence) for operand in node.operands]
            return f" {node.operator} ".join(texts)


def literal(value: Value) -> str:
    """A value as a filter says it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _enclosed(node: Node, text: str, minimum: int) -> str:
    return text if _precedence(node) >= minimum else f"({text})"


def _precedence(node: Node) -> int:
    match node:
        case Arithmetic() | Comparison() | Junction():
            return PRECEDENCE[node.operator]
        case Not() | Negative():
            return UNARY_PRECEDENCE
        case _:
            return _TIGHTEST_PRECEDENCE
