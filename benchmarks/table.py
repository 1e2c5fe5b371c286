"""The figures for people."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Group
from rich.table import Table

from benchmarks.results import Result

_SIGNS = {"at_least": "≥", "above": ">", "below": "<"}


def tables(results: Iterable[Result]) -> Group:
    """One table a work, one line a subject."""
    return Group(*(_table(work, list(found)) for work, found in groupby(results, lambda result: result.work)))


def _table(work: str, results: Sequence[Result]) -> Table:
    shown = Table(
        title=work, title_justify="left", title_style="bold", header_style="dim", box=None, padding=(0, 1, 0, 0)
    )
    for heading, width in (("subject", 23), ("value", 18), ("ratio", 22), ("goal", 13)):
        shown.add_column(heading, width=width, justify="right" if heading == "value" else "left")
    for result in results:
        shown.add_row(result.subject, _value(result), _ratio(result), _goal(result))
    shown.add_row()
    return shown


def _value(result: Result) -> str:
    value = f"{result.value:,.0f}" if result.value >= 100 else f"{result.value:.3g}"
    return f"{value} {result.unit}"


def _ratio(result: Result) -> str:
    if result.ratio is None:
        return ""
    ratio = f"{result.ratio:.2f}" if result.ratio >= 0.1 else f"{result.ratio:.2g}"
    return f"{ratio} of {result.of}"


def _goal(result: Result) -> str:
    if result.reached is None:
        return ""
    (name, goal), *_ = result.goal.items()
    text = f"{_SIGNS[name]} {goal:,}"
    return f"{text} [green]✓[/]" if result.reached else f"{text} [red]✗[/]"
