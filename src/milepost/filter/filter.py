"""A filter: an expression over a message's properties, ready to be asked."""

from collections.abc import Callable, Mapping
from typing import final

from milepost.filter import pushdown
from milepost.filter.canonical import canonical
from milepost.filter.check import check
from milepost.filter.compiler import Decision, compile_tree
from milepost.filter.explain import Explanation, explain
from milepost.filter.parser import parse
from milepost.filter.problem import FilterProblem
from milepost.filter.pushdown import Pushdown
from milepost.filter.tree import Exists, Node, Property, walk

__all__ = ["MAX_BYTES", "Filter", "compile_filter"]

MAX_BYTES = 4096
"""The longest filter, in UTF-8."""


@final
class Filter:
    """A compiled filter; `compile_filter` makes one.

    Filters are equal when their canonical texts are.
    """

    __slots__ = ("canonical", "evaluate", "matches", "names", "text", "tree")

    text: str
    """The expression as it was written."""

    canonical: str
    """The one text of all filters that differ only in spacing, spelling and parentheses."""

    names: frozenset[str]
    """The properties that it mentions."""

    tree: Node
    """The parsed expression."""

    # Functions in slots and not methods: a call goes straight to the generated code.

    matches: Decision
    """Whether a message with these properties matches. An error is a non-match; never raises."""

    evaluate: Decision
    """The same, but an error raises `FilterError` of kind "name", "type" or "arithmetic"."""

    def __init__(self, text: str) -> None:
        tree = _checked(text)
        decision = compile_tree(tree)
        self.text = text
        self.tree = tree
        self.canonical = canonical(tree)
        self.names = frozenset(node.name for node in walk(tree) if isinstance(node, Property | Exists))
        self.matches = decision(True, _whether(tree))
        self.evaluate = decision(False, _whether_or_error(tree, text))

    def explain(self, properties: Mapping[str, object]) -> Explanation:
        """What each part evaluates to on a message with these properties; never raises."""
        return explain(self.tree, properties)

    def pushdown(self) -> Pushdown | None:
        """The condition in SQL that every match meets, or None if there is none."""
        return pushdown.derive(self.tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __repr__(self) -> str:
        return f"compile_filter({self.text!r})"

    def __reduce__(self) -> tuple[Callable[[str], "Filter"], tuple[str]]:
        return compile_filter, (self.text,)


def compile_filter(text: str) -> Filter:
    """Compiles an expression such as `amount >= 100 && region == "EU"`.

    Raises `FilterError` of kind "syntax", "type", "too_long" or "too_complex".
    """
    return Filter(text)


def _checked(text: str) -> Node:
    if not isinstance(text, str):
        raise TypeError(f"a filter is a text, such as 'amount >= 100', not {text!r}")
    encoded = text.encode(errors="surrogatepass")
    if len(encoded) > MAX_BYTES:
        offset = len(encoded[:MAX_BYTES].decode(errors="ignore"))
        summary = f"the filter has {len(encoded):,} bytes, more than {MAX_BYTES:,}"
        raise FilterProblem("too_long", offset, summary).error(text)
    tree = parse(text)
    if problem := check(tree):
        raise problem.error(text)
    return tree


def _whether(tree: Node) -> Decision:
    return lambda properties: explain(tree, properties).value is True


def _whether_or_error(tree: Node, text: str) -> Decision:
    def decide(properties: Mapping[str, object]) -> bool:
        result = explain(tree, properties)
        if result.problem:
            raise result.problem.error(text)
        return result.value is True

    return decide
