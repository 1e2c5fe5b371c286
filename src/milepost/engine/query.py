"""What a reader or a subscription is after, as a query of the log."""

from milepost.filter import Filter
from milepost.log.query import PropertyCondition, Query, Selection, Since


def query_of(
    selection: Selection, where: Filter | None, *, since: Since | None = None, backwards: bool = False
) -> Query:
    """A query with a filter, of which as much as possible becomes a condition of the statement."""
    if where is None:
        return Query(selection, since=since, backwards=backwards)
    implied = where.pushdown()
    condition = None if implied is None else PropertyCondition(implied.path, implied.variables)
    return Query(selection, since, condition, where.matches, backwards)
