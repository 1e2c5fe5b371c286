"""The rules of types: what each operator takes.

The same rules are applied when a filter is compiled, where the kind of a property is unknown, and
when it is evaluated.
"""

from collections.abc import Sequence

from milepost.filter.problem import FilterProblem
from milepost.filter.tree import Arithmetic, Comparison, Junction, Negative, Node, Not, Property, walk
from milepost.filter.values import Kind

__all__ = ["check", "misuse", "wrong_result"]


def check(tree: Node) -> FilterProblem | None:
    """What is wrong with a tree whatever the message, from left to right, or None."""
    for node in walk(tree):
        if problem := misuse(node, [child.kind for child in node.children]):
            return problem
    return wrong_result(tree, tree.kind)


def misuse(node: Node, kinds: Sequence[Kind | None]) -> FilterProblem | None:
    """What is wrong with a node whose first children have these kinds; None is an unknown one."""
    match node:
        case Not():
            return _operand(node, "!", Kind.BOOLEAN, kinds)
        case Negative():
            return _operand(node, "-", Kind.INTEGER, kinds)
        case Arithmetic():
            return _operand(node, node.operator, Kind.INTEGER, kinds)
        case Junction():
            return _operand(node, node.operator, Kind.BOOLEAN, kinds)
        case Comparison():
            return _comparison(node, *kinds)
        case _:
            return None


def wrong_result(tree: Node, kind: Kind | None) -> FilterProblem | None:
    """What is wrong with a whole filter whose value has this kind."""
    if kind in (None, Kind.BOOLEAN):
        return None
    return FilterProblem("type", tree.offset, f"the result of a filter is a boolean, but this is {kind.value}")


def _operand(node: Node, operator: str, wanted: Kind, kinds: Sequence[Kind | None]) -> FilterProblem | None:
    for child, kind in zip(node.children, kinds, strict=False):
        if kind not in (None, wanted):
            summary = f'"{operator}" takes {wanted.value}, but this is {kind.value}'
            return FilterProblem("type", child.offset, summary, _operand_hint(node, child))
    return None


def _operand_hint(node: Node, child: Node) -> str | None:
    if isinstance(node, Junction) and not isinstance(child, Property):
        return f'each side of "{node.operator}" is a condition of its own, as in x == 1 || x == 2'
    return None


def _comparison(node: Comparison, left: Kind | None, right: Kind | None) -> FilterProblem | None:
    if node.ordered and Kind.BOOLEAN in (left, right):
        summary = f'"{node.operator}" compares integers or strings, not booleans'
        return FilterProblem("type", node.offset, summary, _order_hint(node))
    if left is None or right is None or left is right:
        return None
    summary = f'"{node.operator}" compares values of one type, not {left.value} with {right.value}'
    return FilterProblem("type", node.offset, summary, _equality_hint(node))


def _order_hint(node: Comparison) -> str | None:
    if isinstance(node.left, Comparison):
        return 'comparisons do not chain: write "a < b && b < c"'
    return _equality_hint(node)


def _equality_hint(node: Comparison) -> str | None:
    if isinstance(node.left, Not):
        return f'"!" binds tighter than "{node.operator}": write !(…) around the comparison'
    return None
