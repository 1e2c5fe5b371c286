"""Limits and checks of one append, and the instruments that see it from its beginning to its end."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from milepost.errors import InvalidMessage, TooLarge
from milepost.log.codec import Codec, check_stream
from milepost.log.message import ANY, Appended
from milepost.log.protocol import PreparedAppend, TransactionLog
from milepost.throttled_warnings import ThrottledWarnings

AppendPayloads: TypeAlias = Sequence[tuple[str, Sequence[Any]]]
"""What is appended, as it was given: streams, and the messages for each."""
AppendEnd: TypeAlias = Callable[[Sequence[Appended], BaseException | None], None]
"""Told how an append ended: what it came to, of each stream, or what was raised."""

instrument_warnings = ThrottledWarnings(logging.getLogger("milepost.instruments"), "an instrument")
"""What instruments raise changes nothing but the log."""


class AppendInstrument(Protocol):
    """Told of each append when it begins, in the context of the caller."""

    def appending(self, payloads: AppendPayloads, carrier: dict[str, str], *, sends: bool) -> AppendEnd | None:
        """An append begins; what is returned is called at its end.

        Args:
            payloads: What is appended.
            carrier: What is put into it goes into the metadata of each message that has none of these names.
            sends: Whether it is sent now. `tx.append` only makes messages: they are sent when that commits.
        """
        ...


class InstrumentedAppend:
    """An append that instruments see. Nothing that they raise comes back."""

    __slots__ = ("_ends", "_instruments", "_payloads", "_sends", "appended", "carrier")

    def __init__(self, instruments: Sequence[AppendInstrument], payloads: AppendPayloads, *, sends: bool) -> None:
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
                instrument_warnings.warn("failed when an append began", with_traceback=True)
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
                instrument_warnings.warn("failed when an append ended", with_traceback=True)


MAX_APPEND_MESSAGES = 10_000
"""The most messages of one append: it is one transaction and one parameter."""


def as_message_list(messages: Any) -> Sequence[Any]:
    """Return what is to be appended to one stream, one message or a list, as a list."""
    return messages if isinstance(messages, list | tuple) else [messages]


def as_batches(messages: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return the same for each of several streams."""
    if not isinstance(messages, Mapping):
        raise InvalidMessage("messages", f"a dict of streams is wanted, not {type(messages).__name__}")
    return {stream: as_message_list(of_stream) for stream, of_stream in messages.items()}


def check_batch(stream: str, payloads: Sequence[Any]) -> None:
    """Refuses what cannot be appended to a stream at once."""
    check_stream(stream)
    if not payloads:
        raise InvalidMessage("messages", f"at least one for stream {stream!r} is wanted")
    if len(payloads) > MAX_APPEND_MESSAGES:
        raise _too_many_messages(len(payloads))


def _too_many_messages(count: int) -> TooLarge:
    return TooLarge("messages", f"{count:,} of them, over the limit of {MAX_APPEND_MESSAGES:,} an append")


def check_streams(streams: Mapping[str, Sequence[Any]], expected: Collection[str]) -> None:
    """Refuses an append to several streams that has no or too many messages, or expects something of others."""
    if not streams:
        raise InvalidMessage("messages", "at least one stream with one message is wanted")
    if (count := sum(map(len, streams.values()))) > MAX_APPEND_MESSAGES:
        raise _too_many_messages(count)
    if unknown := set(expected) - set(streams):
        raise InvalidMessage("expected", f"stream {min(unknown)!r} is not among those appended to")


class Appender:
    """Checks and encodes messages, and lets instruments see each append from its beginning to its end."""

    def __init__(self, codec: Codec, instruments: Sequence[AppendInstrument] = ()) -> None:
        self._codec = codec
        self._instruments = instruments

    async def append(
        self,
        log: TransactionLog,
        stream: str,
        payloads: Sequence[Any],
        *,
        expected: int,
        wake: bool,
        connection: object | None = None,
    ) -> Appended:
        """Append to one stream, atomically."""
        with InstrumentedAppend(self._instruments, [(stream, payloads)], sends=True) as seen:
            batch = self._encoded(stream, payloads, seen.carrier, expected)
            seen.appended = await log.append([batch], wake=wake, connection=connection)
            return seen.appended[0]

    async def append_many(
        self,
        log: TransactionLog,
        payloads: Mapping[str, Sequence[Any]],
        *,
        expected: Mapping[str, int],
        wake: bool,
        connection: object | None = None,
    ) -> dict[str, Appended]:
        """Append to several streams: all or nothing. The result has the streams in the order of `payloads`."""
        check_streams(payloads, expected)
        with InstrumentedAppend(self._instruments, list(payloads.items()), sends=True) as seen:
            batches = [
                self._encoded(stream, of_stream, seen.carrier, expected.get(stream, ANY))
                for stream, of_stream in payloads.items()
            ]
            seen.appended = await log.append(batches, wake=wake, connection=connection)
            return dict(zip(payloads, seen.appended, strict=True))

    def prepared(self, stream: str, payloads: Sequence[Any], *, expected: int) -> PreparedAppend:
        """Return an append to one stream, checked and encoded, to be sent later."""
        with InstrumentedAppend(self._instruments, [(stream, payloads)], sends=False) as seen:
            return self._encoded(stream, payloads, seen.carrier, expected)

    def _encoded(
        self, stream: str, payloads: Sequence[Any], along: Mapping[str, str], expected: int
    ) -> PreparedAppend:
        check_batch(stream, payloads)
        encoded = self._codec.encode(payloads, along)
        return PreparedAppend(stream, encoded, len(payloads), checked_expected(expected))


def checked_expected(expected: int) -> int:
    """The version that a stream must have, as a number; what can be none is refused."""
    if not isinstance(expected, int) or isinstance(expected, bool) or not -2 <= expected < 2**63:
        raise InvalidMessage("expected", f"ANY, NO_STREAM, STREAM_EXISTS or a version is wanted, not {expected!r}")
    return int(expected)
