"""What becomes of a delivery whose block raised."""

from typing import Any

from milepost.engine.consuming.statistics import How
from milepost.engine.outcomes import VERSION_RETRY_SECONDS, VERSION_WAIT_SECONDS, Park, RetryLater, Skip
from milepost.engine.tracebacks import reason_of, traceback_of
from milepost.log.codec import NewerVersion
from milepost.log.message import Message


def verdict(error: Exception, message: Message[Any]) -> tuple[How, dict[str, Any]]:
    """How it is settled, and with which words: what a decision says, and a retry for any other error."""
    match error:
        case Park():
            return "park", {"reason": error.reason}
        case Skip():
            return "skip", {"reason": error.reason}
        case RetryLater():
            return "retry", {"after": error.seconds, "count": error.count, "reason": error.reason}
        case NewerVersion() if error.is_of(message):
            waits = {"after": VERSION_RETRY_SECONDS, "within": VERSION_WAIT_SECONDS}
            return "retry", {**waits, "count": False, "reason": str(error)}
    return "retry", {"reason": reason_of(error), "error": traceback_of(error)}
