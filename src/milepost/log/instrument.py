"""Who sees appends from their beginning to their end, and may send something along with their messages."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from milepost.complaints import Complaints
from milepost.log.message import Appended

Payloads: TypeAlias = Sequence[tuple[str, Sequence[Any]]]
"""What is appended, as it was given: streams, and the messages for each."""
AppendEnd: TypeAlias = Callable[[Sequence[Appended], BaseException | None], None]
"""Told how an append ended: what it came to, of each stream, or what was raised."""

complaints = Complaints(logging.getLogger("milepost.instruments"), "an instrument")
"""What instruments raise changes nothing but the log."""


class AppendInstrument(Protocol):
    """Told of each append when it begins, in the context of the caller."""

    def appending(self, payloads: Payloads, carrier: dict[str, str], *, sends: bool) -> AppendEnd | None:
        """An append begins; what is returned is called at its end.

        Args:
            payloads: What is appended.
            carrier: What is put into it goes into the metadata of each message that has none of these names.
            sends: Whether it is sent now. `tx.append` only makes messages: they are sent when that commits.
        """
        ...


class Seen:
    """An append that instruments see. Nothing that they raise comes back."""

    __slots__ = ("_ends", "_instruments", "_payloads", "_sends", "appended", "carrier")

    def __init__(self, instruments: Sequence[AppendInstrument], payloads: Payloads, *, sends: bool) -> None:
        self._instruments = instruments
        self._payloads = payloads
        self._sends = sends
        self._ends: list[AppendEnd] = []
        self.carrier: dict[str, str] = {}
        """What goes along with each message."""
        self.appended: Sequence[Appended] = ()
        """What it came to; to be set before the end."""

    def __enter__(self) -> Self:
        for instrument in self._instruments:
            try:
                end = instrument.appending(self._payloads, self.carrier, sends=self._sends)
            except Exception:
                complaints.make("failed when an append began", with_traceback=True)
            else:
                self._ends += [end] if end is not None else []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in reversed(self._ends):
            try:
                end(self.appended, error)
            except Exception:
                complaints.make("failed when an append ended", with_traceback=True)
