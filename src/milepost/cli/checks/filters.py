"""A check of filters, on the newest messages that they could match."""

from typing import Any

import msgspec

from milepost.cli.checks.finding import Examined, Finding, shortened
from milepost.engine.trace.deciding import deciding
from milepost.engine.trace.selecting import Selecting, selecting
from milepost.filter.explain import Explanation, explain
from milepost.log.selection import Selection
from milepost.names import category_hash, category_of

MOST = 200
"""Subscriptions whose filters are tried."""
SAMPLE = 500
"""Messages that a filter is tried on."""
ENOUGH = 20
"""Messages that have to be there before it says something that a filter matches none."""
NAMED = 20
"""Lines of the check."""

Properties = dict[str, Any]


async def filters(examined: Examined) -> list[Finding]:
    """Filters that match nothing, or cannot be evaluated on anything, of what is newest in the log."""
    found = []
    rows = await examined.progress.ask("filters", most=MOST)
    for group, name, text in rows:
        chosen = selecting(text)
        if chosen is not None and (words := await _judged(examined, chosen)) is not None:
            found.append(Finding("filters", "warning", f"{group}/{name}: {words}", f"{group}/{name}"))
    if found:
        return shortened(found, NAMED)
    words = f"each of {len(rows)} matches something new" if rows else "no subscription has one"
    return [Finding("filters", "ok", words)]


async def _judged(examined: Examined, chosen: Selecting) -> str | None:
    """What is wrong with a filter; None: nothing, as far as can be seen."""
    if chosen.where is None:
        return None
    tried = []
    for properties in await _sample(examined, chosen.selection):
        tried.append((explain(chosen.where, properties), properties))
        if tried[-1][0].value is True:
            return None
    newest = f"the newest {len(tried)} messages that it could match"
    if tried and all(explanation.problem for explanation, _ in tried):
        return f"its filter cannot be evaluated on any of {newest}: {_why(tried)}: mend it"
    if len(tried) >= ENOUGH:
        return f"its filter matches none of {newest}: {_why(tried)}: is that meant?"
    return None


def _why(tried: list[tuple[Explanation, Properties]]) -> str:
    """What decided against one of them: one that there is a hint for, or that could be evaluated, the newest."""
    hinted = [one for one in tried if one[0].problem is not None and one[0].problem.hint]
    evaluated = [one for one in tried if one[0].problem is None]
    return " and ".join(map(str, deciding(*[*hinted, *evaluated, *tried][0])))


async def _sample(examined: Examined, wanted: Selection) -> list[Properties]:
    """The properties of the newest messages that a subscription is after, but for its filter, the newest first."""
    streams = sorted(wanted.streams or ())
    categories = [] if streams else sorted(wanted.categories or ())
    rows = await examined.ask(
        "sample",
        everything=not streams and not categories,
        hashes=[category_hash(category) for category in categories],
        streams=streams,
        each=max(1, SAMPLE // max(1, len(streams) + len(categories))),
        most=SAMPLE,
    )
    return [msgspec.json.decode(properties) for stream, type_, properties in rows if _is_of(wanted, stream, type_)]


def _is_of(wanted: Selection, stream: str, type_: str) -> bool:
    return (wanted.categories is None or category_of(stream) in wanted.categories) and (
        wanted.types is None or wanted.types.match(type_)
    )
