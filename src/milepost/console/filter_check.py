"""Check a filter as a person types it: compile it, show the place of a mistake, evaluate each part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from milepost.errors import FilterError
from milepost.filter import Filter, compile_filter
from milepost.filter.canonical import literal
from milepost.filter.excerpt import on_one_line
from milepost.filter.explain import Explanation
from milepost.filter.tree import Boolean, Integer, String
from milepost.filter.values import Value

PartTone = Literal["true", "false", "value", "error", "skipped"]

EXCERPT_CHARACTERS = 60
"""Characters that are shown on each side of a place that is wrong."""
MAX_PART_CHARACTERS = 160
"""Characters that are shown of a part, and of a value."""


@dataclass(frozen=True)
class FilterMistake:
    """A mistake in an expression, and its place."""

    words: str
    hint: str
    place: int
    """The character that it is about, from 1."""
    before: str
    at: str
    """Empty if it is the end of the text."""
    after: str

    @classmethod
    def of(cls, text: str, error: FilterError) -> "FilterMistake":
        """Return the mistake of an error, with the text around its place."""
        # What the command shows too: a line of words, the place in two lines, and perhaps a hint.
        words, _, _, *hints = str(error).split("\n")
        at = error.offset
        before, after = text[max(0, at - EXCERPT_CHARACTERS) : at], text[at + 1 : at + 1 + EXCERPT_CHARACTERS]
        opening, closing = "…" * (at > EXCERPT_CHARACTERS), "…" * (len(text) > at + 1 + EXCERPT_CHARACTERS)
        return cls(words, " ".join(hints), at + 1, opening + before, text[at : at + 1], after + closing)


@dataclass(frozen=True)
class EvaluatedPart:
    """A part of a filter, and its value."""

    depth: int
    text: str
    outcome: str
    tone: PartTone


@dataclass(frozen=True)
class CheckedExpression:
    """An expression, compiled or with its mistake."""

    text: str
    filter: Filter | None
    """None if it cannot be used, or nothing was typed."""
    mistake: FilterMistake | None

    @classmethod
    def of(cls, text: str) -> "CheckedExpression":
        """Check an expression; never raises."""
        if not text.strip():
            return cls(text, None, None)
        try:
            return cls(text, compile_filter(text), None)
        except FilterError as error:
            return cls(text, None, FilterMistake.of(text, error))


@dataclass(frozen=True)
class FilterEvaluation:
    """The evaluation of a filter on a message."""

    verdict: Literal["match", "no match", "error"]
    """An error counts as no match."""
    parts: Sequence[EvaluatedPart]

    @classmethod
    def of(cls, filter: Filter, properties: Mapping[str, object]) -> "FilterEvaluation":
        """Evaluate a filter on properties."""
        explanation = filter.explain(properties)
        if explanation.problem is not None:
            return cls("error", list(_evaluated_parts(explanation)))
        return cls("match" if explanation.value is True else "no match", list(_evaluated_parts(explanation)))


def _evaluated_parts(whole: Explanation) -> Iterator[EvaluatedPart]:
    """Yield each part but the constants, which speak for themselves."""
    waiting = [(0, whole)]
    while waiting:
        depth, part = waiting.pop()
        outcome, tone = _outcome(part)
        yield EvaluatedPart(
            depth, on_one_line(part.text, MAX_PART_CHARACTERS), on_one_line(outcome, MAX_PART_CHARACTERS), tone
        )
        waiting += [
            (depth + 1, child)
            for child in reversed(part.children)
            if not isinstance(child.node, Integer | String | Boolean)
        ]


def _outcome(part: Explanation) -> tuple[str, PartTone]:
    if part.problem is None:
        return _value_in_words(part.value)
    if any(child.problem for child in part.children):
        return "error", "error"
    hint = f" ({part.problem.hint})" if part.problem.hint else ""
    return f"error: {part.problem.summary}{hint}", "error"


def _value_in_words(value: Value | None) -> tuple[str, PartTone]:
    if value is None:
        return "not evaluated", "skipped"
    if isinstance(value, bool):
        return literal(value), "true" if value else "false"
    return literal(value), "value"
