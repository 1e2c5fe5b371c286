"""What programs wrote, made fit to be stored."""

from collections.abc import Sequence

from milepost.dispatch import Move, Row

LONGEST = 8192
"""Bytes of a reason or an error that are kept."""
LATEST = 1e11
"""The latest time that a row can be due, in seconds since 1970: some three thousand years ahead."""


def storable(moves: Sequence[Move]) -> list[Move]:
    """The moves, with rows that can be stored."""
    return [
        Move(move.position, move.replaces, _row(move.row), move.required) if move.row else move for move in moves
    ]


def _row(row: Row) -> Row:
    reason, error, due = storable_text(row.reason), storable_text(row.error), _time(row.due)
    if reason is row.reason and error is row.error and due is row.due:
        return row
    return row.changed(reason=reason, error=error, due=due)


def storable_text(text: str) -> str:
    """Without what PostgreSQL cannot hold, and not longer than what is kept."""
    if len(text) <= LONGEST and text.isascii() and "\0" not in text:
        return text
    whole = text.replace("\0", "").encode("utf-8", "replace")
    return whole[:LONGEST].decode("utf-8", "ignore")


def _time(due: float | None) -> float | None:
    # Written so that NaN is late as well.
    return due if due is None or due <= LATEST else LATEST
