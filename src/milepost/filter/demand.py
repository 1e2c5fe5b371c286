"""The equalities of which a matching message must meet one."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from milepost.filter.tree import Boolean, Comparison, Integer, Junction, Node, Not, Property, String
from milepost.filter.values import Value

__all__ = ["NO_DEMAND", "Demand", "Equality", "demand", "says_all"]


class Equality(NamedTuple):
    """A property that has exactly this value; the type keeps `true` and 1 apart."""

    name: str
    type: type
    value: Value


Demand: TypeAlias = frozenset[Equality]
"""Equalities of which a message must meet at least one."""

NO_DEMAND: Demand = frozenset()
"""Where any message may match."""


def demand(node: Node, cost: Callable[[Demand], int], wanted: bool = True) -> Demand:
    """What a message must meet for a node to be as wanted: where there is a choice, the cheapest."""
    match node:
        case Property():
            return _equality(node.name, wanted)
        case Not():
            return demand(node.operand, cost, not wanted)
        case Comparison():
            return _of_comparison(node, wanted)
        case Junction():
            each = [demand(operand, cost, wanted) for operand in node.operands]
            if node.decisive is not wanted:
                return min(filter(None, each), key=cost, default=NO_DEMAND)
            return NO_DEMAND.union(*each) if all(each) else NO_DEMAND
        case _:
            return NO_DEMAND


def says_all(node: Node) -> bool:
    """Whether what meets the demand of a node, if it has one, matches for certain."""
    match node:
        case Junction():
            return False
        case Not():
            return says_all(node.operand)
        case _:
            return True


def _of_comparison(node: Comparison, wanted: bool) -> Demand:
    match node.left, node.right:
        case (Property(name), (Integer() | String() | Boolean()) as constant) | (
            (Integer() | String() | Boolean()) as constant,
            Property(name),
        ):
            if not node.ordered:
                return _of_equality(name, constant.value, wanted is (node.operator == "=="))
    return NO_DEMAND


def _of_equality(name: str, value: Value, equal: bool) -> Demand:
    if equal:
        return _equality(name, value)
    # What is not true is false, but what is not 1 may be anything.
    return _equality(name, not value) if isinstance(value, bool) else NO_DEMAND


def _equality(name: str, value: Value) -> Demand:
    return frozenset([Equality(name, type(value), value)])
