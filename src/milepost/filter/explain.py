"""What each part of a filter evaluates to on one message.

This is the exact evaluation, with its errors. What the compiler makes is the same for messages on
which nothing goes wrong, and comes here when something does.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from milepost.filter import hints
from milepost.filter.canonical import canonical, literal
from milepost.filter.check import misuse, wrong_result
from milepost.filter.excerpt import on_one_line
from milepost.filter.problem import FilterProblem
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
from milepost.filter.values import Value, is_integer, kind_of, value_of

__all__ = ["Explanation", "explain"]

_MAX_TEXT_CHARACTERS = 60
_MAX_VALUE_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Explanation:
    """A part of a filter with its value, or the problem that ended it; neither if it was skipped.

    A part that has no value because one of its children failed has that child's problem.
    """

    node: Node
    value: Value | None = None
    problem: FilterProblem | None = None
    children: tuple["Explanation", ...] = ()

    @property
    def text(self) -> str:
        """The part's canonical text."""
        return canonical(self.node)

    @property
    def status(self) -> str:
        """One of "value", "error" and "not evaluated"."""
        if self.problem:
            return "error"
        return "not evaluated" if self.value is None else "value"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON. `value` and `error` are there only if there is one."""
        plain: dict[str, Any] = {"text": self.text, "status": self.status}
        if self.problem:
            plain["error"] = {
                "kind": self.problem.kind,
                "offset": self.problem.offset,
                "message": self.problem.summary,
                "hint": self.problem.hint,
            }
        elif self.value is not None:
            plain["value"] = self.value
        children = plain["children"] = []
        for child in self.children:
            children.append(child.as_dict())  # noqa: PERF401, a comprehension is one more frame
        return plain

    def __str__(self) -> str:
        rows = list(self._rows())
        width = max(len(text) for text, _ in rows)
        return "\n".join(f"{text:<{width}}  {outcome}" for text, outcome in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        """A text and an outcome for each part but the constants, which speak for themselves."""
        waiting = [("", self)]
        while waiting:
            indent, part = waiting.pop()
            yield indent + on_one_line(part.text, _MAX_TEXT_CHARACTERS), part._outcome()
            waiting += [
                (indent + "  ", child)
                for child in reversed(part.children)
                if not isinstance(child.node, Integer | String | Boolean)
            ]

    def _outcome(self) -> str:
        if self.problem is None:
            shown = "not evaluated" if self.value is None else literal(self.value)
            return on_one_line(shown, _MAX_VALUE_CHARACTERS)
        if any(child.problem for child in self.children):
            return "error"
        hint = f" ({self.problem.hint})" if self.problem.hint else ""
        return f"error: {self.problem.summary}{hint}"


def explain(tree: Node, properties: Mapping[str, object]) -> Explanation:
    """Evaluates a tree on a message's properties; never raises."""
    result = _explain(tree, properties)
    if result.value is None:
        return result
    problem = wrong_result(tree, kind_of(result.value))
    return replace(result, value=None, problem=problem) if problem else result


def _explain(node: Node, properties: Mapping[str, object], on_the_right: bool = False) -> Explanation:
    """One frame for each level of the tree, so that the deepest filter stays far from the limit."""
    match node:
        case Integer() | String() | Boolean():
            return Explanation(node, node.value)
        case Property():
            return _property(node, properties, on_the_right)
        case Exists():
            return _exists(node, properties)
        case _:
            parts: list[Explanation] = []
            for child in node.children:
                if parts and _settled(node, parts[-1]):
                    parts.append(Explanation(child))
                    continue
                compared = isinstance(node, Comparison) and bool(parts)
                parts.append(_explain(child, properties, on_the_right=compared))
            return _combined(node, tuple(parts))


def _property(node: Property, properties: Mapping[str, object], on_the_right: bool) -> Explanation:
    try:
        raw = properties[node.name]
    except KeyError:
        hint = hints.missing_property(node.name, properties, on_the_right)
        summary = f'the message has no property "{node.name}"'
        return Explanation(node, problem=FilterProblem("name", node.offset, summary, hint))
    except Exception:  # a mapping may run anybody's code
        return _unreadable(node)
    value = value_of(raw)
    if value is None:
        summary = f'property "{node.name}" is {_in_words(raw)}, not an integer, string or boolean'
        return Explanation(node, problem=FilterProblem("type", node.offset, summary))
    return Explanation(node, value)


def _exists(node: Exists, properties: Mapping[str, object]) -> Explanation:
    try:
        return Explanation(node, bool(node.name in properties))
    except Exception:  # as above
        return _unreadable(node)


def _unreadable(node: Property | Exists) -> Explanation:
    summary = f'property "{node.name}" cannot be read'
    return Explanation(node, problem=FilterProblem("type", node.offset, summary))


_STRANGERS: list[tuple[type, str]] = [
    (int, "a number beyond 64 bits"),
    (float, "a number with a fraction"),
    (type(None), "null"),
    (list, "a list"),
    (dict, "an object"),
    (bytes, "bytes"),
]


def _in_words(raw: object) -> str:
    for kind, words in _STRANGERS:
        if issubclass(type(raw), kind):
            return words
    return "something else"


def _settled(node: Node, last: Explanation) -> bool:
    """Whether the children after this one are not evaluated."""
    if isinstance(node, Junction):
        return last.value is not (not node.decisive)
    return last.value is None


def _combined(node: Node, parts: tuple[Explanation, ...]) -> Explanation:
    values: list[Value] = []
    for part in parts:
        if part.problem:
            return Explanation(node, problem=part.problem, children=parts)
        if part.value is not None:
            values.append(part.value)
    problem = misuse(node, [kind_of(value) for value in values])
    if problem:
        return Explanation(node, problem=problem, children=parts)
    result = _result(node, values)
    if isinstance(result, FilterProblem):
        return Explanation(node, problem=result, children=parts)
    return Explanation(node, result, children=parts)


def _result(node: Node, values: list[Value]) -> Value | FilterProblem:
    match node:
        case Not():
            return not values[0]
        case Negative():
            return _arithmetic(node, operator.neg, *values)
        case Arithmetic():
            return _arithmetic(node, _ARITHMETIC[node.operator], *values)
        case Comparison():
            return _COMPARE[node.operator](*values)
        case _:
            return values[-1]


def _arithmetic(node: Node, compute: Callable[..., int], *values: Value) -> int | FilterProblem:
    try:
        result = compute(*values)
    except ZeroDivisionError:
        return FilterProblem("arithmetic", node.offset, "a division by zero")
    if is_integer(result):
        return result
    return FilterProblem("arithmetic", node.offset, "the result is outside the 64 bits of an integer")


def _quotient(dividend: int, divisor: int) -> int:
    size = abs(dividend) // abs(divisor)
    return size if (dividend < 0) == (divisor < 0) else -size


def _remainder(dividend: int, divisor: int) -> int:
    size = abs(dividend) % abs(divisor)
    return -size if dividend < 0 else size


_ARITHMETIC: dict[str, Callable[..., int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
}
# Python orders strings by code points, which is the order of their UTF-8 bytes.
_COMPARE: dict[str, Callable[..., bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
