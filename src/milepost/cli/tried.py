"""What is said of a handler that was tried."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from milepost.cli.output import console, visible
from milepost.engine.prospect import Prospect
from milepost.engine.rehearsal import Written
from milepost.engine.trial import Chosen, Tried

_OURS = str(Path(__file__).parents[1])
_STYLES = {"done": "green", "skipped": "yellow", "again": "yellow", "retrying": "bold red", "parked": "bold red"}


class Telling:
    """Tells a person, before the handler runs and after it."""

    def __init__(self) -> None:
        self._console = console()

    def chosen(self, chosen: Chosen) -> None:
        """What is about to run."""
        for message in chosen.messages:
            self._line(
                f"position {message.position}: {visible(message.stream)} version {message.version}, "
                f"{visible(message.type)}, {message.time.astimezone():%Y-%m-%d %H:%M:%S}"
            )
            if message.position in chosen.unreached:
                self._line(f"  would not reach {chosen.subscription.name}: {chosen.unreached[message.position]}")
            if delivery := chosen.stored.get(message.position):
                reason = f": {visible(delivery.reason)}" if delivery.reason else ""
                self._line(f"  {delivery.state} after {_attempts(delivery.attempts)}{reason}")
        attempt = max(chosen.attempt(message.position) for message in chosen.messages)
        self._line(f"handler: {chosen.handler.name} ({chosen.handler.location}), attempt {attempt}")

    def tried(self, chosen: Chosen, tried: Tried) -> None:
        """What came of it."""
        sys.stdout.flush()
        if tried.has_failed and tried.error is not None:
            self._console.print("".join(lines_of(tried.error)), end="", soft_wrap=True)
        refused = ", but its transaction cannot be committed" if tried.returned and tried.error is not None else ""
        self._line(f"{'returned' if tried.returned else 'raised'} after {_duration(tried.seconds)}{refused}")
        for position, prospect in tried.prospects.items():
            line = Text(f"position {position} would be ")
            self._console.print(line.append(*_sentence(prospect)), soft_wrap=True)
        if chosen.handler.takes_transaction:
            self._transaction(tried)

    def _transaction(self, tried: Tried) -> None:
        if tried.committed:
            warning = "NOT ROLLED BACK: the handler ended the transaction itself, and may have committed it"
            self._console.print(Text(warning, style="bold red"), soft_wrap=True)
            return
        self._line(f"rows written{'' if tried.returned else ' before that'}: {_rows(tried.writes)}")
        for asked in tried.appends:
            self._line(f"appended to {visible(asked.stream)}: {', '.join(map(visible, asked.types))}")
        self._line("rolled back: all that went through its Transaction; anything else that it did stays")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def as_json(chosen: Chosen, tried: Tried) -> dict[str, Any]:
    """The same for a program."""
    return {
        "subscription": chosen.subscription.name,
        "handler": chosen.handler.name,
        "messages": [
            {
                "position": message.position,
                "attempt": chosen.attempt(message.position),
                "unreached": chosen.unreached.get(message.position),
                "prospect": tried.prospects[message.position],
            }
            for message in chosen.messages
        ],
        "seconds": tried.seconds,
        "returned": tried.returned,
        "error": "".join(lines_of(tried.error)) if tried.has_failed and tried.error is not None else None,
        "transaction": chosen.handler.takes_transaction,
        "writes": tried.writes,
        "appends": tried.appends,
        "committed": tried.committed,
    }


def lines_of(error: BaseException) -> list[str]:
    """An error with the part of its traceback that begins in the program's own code, if it comes from there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return traceback.format_exception(type(error), error, trace)


def _sentence(prospect: Prospect) -> tuple[str, str]:
    """What becomes of a message, and how that looks."""
    uncounted = "" if prospect.counts else ", and this counts as no attempt"
    words = {
        "done": "done",
        "skipped": "skipped",
        "parked": "parked",
        "again": "run again at once, and this counts as no attempt",
        "retrying": f"tried again in {_duration(prospect.after or 0)}{uncounted}",
    }
    reason = f": {visible(prospect.reason)}" if prospect.reason else ""
    return words[prospect.state] + reason, _STYLES[prospect.state]


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _rows(writes: Sequence[Written] | None) -> str:
    if writes is None:
        return "not counted, for the server's track_counts is off"
    return "; ".join(map(_of_table, writes)) or "none"


def _of_table(written: Written) -> str:
    counts = {"inserted": written.inserted, "updated": written.updated, "deleted": written.deleted}
    return f"{written.table} {', '.join(f'{count:,} {word}' for word, count in counts.items() if count)}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
