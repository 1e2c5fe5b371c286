"""A filter as a person types it: whether it can be used, where it is wrong, and what each part comes to."""

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

Tone = Literal["true", "false", "value", "error", "skipped"]

AROUND = 60
"""Characters that are shown on each side of a place that is wrong."""
WIDEST = 160
"""Characters that are shown of a part, and of a value."""


@dataclass(frozen=True)
class Wrong:
    """What is wrong with an expression, and where."""

    words: str
    hint: str
    place: int
    """The character that it is about, from 1."""
    before: str
    at: str
    """Empty if it is the end of the text."""
    after: str

    @classmethod
    def of(cls, text: str, error: FilterError) -> "Wrong":
        """An error, with the text around its place."""
        # What the command shows too: a line of words, the place in two lines, and perhaps a hint.
        words, _, _, *hints = str(error).split("\n")
        at = error.offset
        before, after = text[max(0, at - AROUND) : at], text[at + 1 : at + 1 + AROUND]
        opening, closing = "…" * (at > AROUND), "…" * (len(text) > at + 1 + AROUND)
        return cls(words, " ".join(hints), at + 1, opening + before, text[at : at + 1], after + closing)


@dataclass(frozen=True)
class Part:
    """A part of a filter, and what it came to."""

    depth: int
    text: str
    outcome: str
    tone: Tone


@dataclass(frozen=True)
class Checked:
    """What there is to say about an expression, without a message."""

    text: str
    filter: Filter | None
    """None if it cannot be used, or nothing was typed."""
    wrong: Wrong | None

    @classmethod
    def of(cls, text: str) -> "Checked":
        """Looks at an expression; never raises."""
        if not text.strip():
            return cls(text, None, None)
        try:
            return cls(text, compile_filter(text), None)
        except FilterError as error:
            return cls(text, None, Wrong.of(text, error))


@dataclass(frozen=True)
class Explained:
    """What a filter makes of a message."""

    verdict: Literal["match", "no match", "error"]
    """An error counts as no match."""
    parts: Sequence[Part]

    @classmethod
    def of(cls, filter: Filter, properties: Mapping[str, object]) -> "Explained":
        """Evaluates it."""
        explanation = filter.explain(properties)
        if explanation.problem is not None:
            return cls("error", list(_parts(explanation)))
        return cls("match" if explanation.value is True else "no match", list(_parts(explanation)))


def _parts(whole: Explanation) -> Iterator[Part]:
    """Each part but the constants, which speak for themselves."""
    waiting = [(0, whole)]
    while waiting:
        depth, part = waiting.pop()
        outcome, tone = _outcome(part)
        yield Part(depth, on_one_line(part.text, WIDEST), on_one_line(outcome, WIDEST), tone)
        waiting += [
            (depth + 1, child)
            for child in reversed(part.children)
            if not isinstance(child.node, Integer | String | Boolean)
        ]


def _outcome(part: Explanation) -> tuple[str, Tone]:
    if part.problem is None:
        return _told(part.value)
    if any(child.problem for child in part.children):
        return "error", "error"
    hint = f" ({part.problem.hint})" if part.problem.hint else ""
    return f"error: {part.problem.summary}{hint}", "error"


def _told(value: Value | None) -> tuple[str, Tone]:
    if value is None:
        return "not evaluated", "skipped"
    if isinstance(value, bool):
        return literal(value), "true" if value else "false"
    return literal(value), "value"
