"""The tree of a parsed filter.

Each node knows its `offset` in the text (of its operator, where it has one), which does not count
when trees are compared; its `kind`, as far as that can be known without a message; and its
`children`, from left to right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from milepost.filter.values import Kind

__all__ = [
    "Arithmetic",
    "ArithmeticOperator",
    "Boolean",
    "Comparison",
    "ComparisonOperator",
    "Constant",
    "Exists",
    "Integer",
    "Junction",
    "JunctionOperator",
    "Negative",
    "Node",
    "Not",
    "Property",
    "String",
    "walk",
]

ArithmeticOperator: TypeAlias = Literal["+", "-", "*", "/", "%"]
ComparisonOperator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
JunctionOperator: TypeAlias = Literal["&&", "||"]


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer, with its sign."""

    kind: ClassVar[Kind | None] = Kind.INTEGER
    children: ClassVar[tuple["Node", ...]] = ()
    value: int
    offset: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class String:
    """A string, with its escapes removed."""

    kind: ClassVar[Kind | None] = Kind.STRING
    children: ClassVar[tuple["Node", ...]] = ()
    value: str
    offset: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Boolean:
    """`true` or `false`."""

    kind: ClassVar[Kind | None] = Kind.BOOLEAN
    children: ClassVar[tuple["Node", ...]] = ()
    value: bool
    offset: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message's property; its kind is known only with a message."""

    kind: ClassVar[Kind | None] = None
    children: ClassVar[tuple["Node", ...]] = ()
    name: str
    offset: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a message has a property."""

    kind: ClassVar[Kind | None] = Kind.BOOLEAN
    children: ClassVar[tuple["Node", ...]] = ()
    name: str
    offset: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Not:
    """`!`: the other boolean."""

    kind: ClassVar[Kind | None] = Kind.BOOLEAN
    operand: "Node"
    offset: int = field(compare=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """The operand."""
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Negative:
    """`-` before an operand."""

    kind: ClassVar[Kind | None] = Kind.INTEGER
    operand: "Node"
    offset: int = field(compare=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """The operand."""
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An integer made of two."""

    kind: ClassVar[Kind | None] = Kind.INTEGER
    operator: ArithmeticOperator
    left: "Node"
    right: "Node"
    offset: int = field(compare=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """Both operands."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two values of one type are equal, or in an order."""

    kind: ClassVar[Kind | None] = Kind.BOOLEAN
    operator: ComparisonOperator
    left: "Node"
    right: "Node"
    offset: int = field(compare=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """Both operands."""
        return (self.left, self.right)

    @property
    def ordered(self) -> bool:
        """Whether it asks for an order, which booleans do not have."""
        return self.operator not in ("==", "!=")


@dataclass(frozen=True, slots=True)
class Junction:
    """Two or more operands joined by the same `&&` or `||`, tried until one decides.

    No operand is a junction of the same operator: where the parentheses stand makes no difference,
    not even to which errors can happen.
    """

    kind: ClassVar[Kind | None] = Kind.BOOLEAN
    operator: JunctionOperator
    operands: tuple["Node", ...]
    offset: int = field(compare=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """The operands."""
        return self.operands

    @property
    def decisive(self) -> bool:
        """The value of an operand that decides the whole."""
        return self.operator == "||"


Constant: TypeAlias = Integer | String | Boolean
Node: TypeAlias = Constant | Property | Exists | Not | Negative | Arithmetic | Comparison | Junction


def walk(root: Node) -> Iterator[Node]:
    """Every node, in the order of evaluation: children from left to right, then their parent."""
    waiting = [(root, False)]
    while waiting:
        node, ready = waiting.pop()
        if ready or not node.children:
            yield node
            continue
        waiting.append((node, True))
        waiting.extend((child, False) for child in reversed(node.children))
