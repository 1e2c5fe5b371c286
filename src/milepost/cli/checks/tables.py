"""A check of Milepost's tables: whether what is no longer needed goes."""

from milepost.cli.checks.finding import Examined, Finding

MANY = 10_000
"""Dead rows, or rows of cursors, up to which nothing is said."""
A_LANE = 1000
"""Rows of cursors for each lane. Some hundred are usual, and one for each time it was taken in the last day."""
LARGE = 64 * 2**20
"""Bytes up to which the size of a table does not matter."""
A_ROW = 65_536
"""Bytes for each row of a large table that only empty space can explain."""


async def tables(examined: Examined) -> list[Finding]:
    """Tables that are mostly dead rows or empty space, and cursors that are not removed."""
    found = []
    for database in examined.databases:
        for name, live, dead, size, lanes in await database.ask("tables"):
            words = _judged(name, f'"{database.schema}".{name}', live, dead, size, lanes)
            if words is not None:
                found.append(Finding("tables", "warning", f"{name} {words}", name))
    return found or [Finding("tables", "ok", "what is no longer needed is removed")]


def _judged(name: str, qualified: str, live: int, dead: int, size: int, lanes: int) -> str | None:
    if dead > MANY and dead > live:
        return (
            f"has {dead:,} dead rows and {live:,} live ones: end the transactions that keep VACUUM from its work, "
            f"see there, then run `vacuum {qualified}`"
        )
    if name == "cursors" and live > MANY and live > A_LANE * lanes:
        return (
            f"has {live:,} rows for {lanes:,} lanes: old revisions are not removed; see whether workers run, and "
            "whether something holds locks on it"
        )
    if size > LARGE and size > A_ROW * max(1, live):
        return (
            f"takes {size / 2**20:,.0f} MiB for {live:,} rows: it had more once; `vacuum full {qualified}` gives "
            "the space back, and stops everything meanwhile"
        )
    return None
