"""A time as a person types it."""

import re
from datetime import UTC, datetime, timedelta

from milepost.cli.ending import Refusal

_AGO = re.compile(r"([0-9]{1,9})([smhd])(?: ago)?", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(name: str, text: str) -> datetime:
    """The time that a word of this name means; without a time zone it is this machine's."""
    if ago := _AGO.fullmatch(text):
        try:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise Refusal(f"{name} {text!r}: that is before all time") from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise Refusal(
            f"{name} {text!r}: a time such as 2026-03-01T12:00:00Z is wanted, or 90s, 15m, 3h, 2d ago"
        ) from None
