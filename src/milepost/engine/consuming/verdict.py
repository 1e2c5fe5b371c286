"""What becomes of a delivery whose block raised."""

from typing import Any

from milepost.engine.consuming.statistics import How
from milepost.engine.outcomes import Park, RetryLater, Skip
from milepost.engine.tracebacks import reason_of, traceback_of


def verdict(error: Exception) -> tuple[How, dict[str, Any]]:
    """How it is settled, and with which words: what a decision says, and a retry for any other error."""
    match error:
        case Park():
            return "park", {"reason": error.reason}
        case Skip():
            return "skip", {"reason": error.reason}
        case RetryLater():
            return "retry", {"after": error.seconds, "count": error.count, "reason": error.reason}
    return "retry", {"reason": reason_of(error), "error": traceback_of(error)}
