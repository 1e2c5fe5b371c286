"""A time, or how long something lasts, as a person types it."""

import re
from datetime import UTC, datetime, timedelta

from milepost.cli.ending import Refusal

_LIFE = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_AGO = re.compile(r"([0-9]{1,9})([smhd])(?: ago)?", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


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


def expiry(name: str, text: str) -> datetime | timedelta:
    """Return when something ends, or after which time; without a time zone it is this machine's."""
    try:
        if life := _LIFE.fullmatch(text):
            return timedelta(**{_UNITS[life[2]]: int(life[1])})
        return datetime.fromisoformat(text).astimezone()
    except OverflowError:
        raise Refusal(f"{name} {text!r}: that is after all time") from None
    except ValueError:
        raise Refusal(
            f"{name} {text!r}: how long it lasts is wanted, such as 12h, 30d or 8w, or when it ends, such as "
            "2026-12-31 or 2026-12-31T18:00:00Z"
        ) from None
