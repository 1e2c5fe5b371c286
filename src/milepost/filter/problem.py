"""What is wrong with a filter, or with a message under it."""

from dataclasses import dataclass

from milepost.errors import FilterError
from milepost.filter.excerpt import excerpt

__all__ = ["FilterProblem"]


@dataclass(frozen=True, slots=True)
class FilterProblem:
    """A kind of error, its place, what is wrong in one line, and what was probably meant."""

    kind: str
    offset: int
    summary: str
    hint: str | None = None

    def error(self, text: str) -> FilterError:
        """The error to raise, which shows the place in the text."""
        lines = [self.summary, *excerpt(text, self.offset)]
        if self.hint:
            lines.append(self.hint)
        return FilterError(self.kind, self.offset, "\n".join(lines))
