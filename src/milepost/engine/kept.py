"""Where progress is kept, as far as it matters to handlers."""

from enum import Enum


class Kept(Enum):
    """How much of what a handler does can commit together with its progress."""

    WITH_THE_LOG = "in the database of the log"
    """What it writes there, and what it appends."""
    IN_ANOTHER_DATABASE = "in another database"
    """What it writes there."""
    OUTSIDE = "outside of PostgreSQL"
    """Nothing."""

    @classmethod
    def of(cls, url: str | None, progress: object) -> "Kept":
        """By the options of a `Milepost`."""
        if progress is None or progress == url:
            return cls.WITH_THE_LOG
        return cls.IN_ANOTHER_DATABASE if isinstance(progress, str) else cls.OUTSIDE
