"""Appending: one function of the schema, one round trip."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from milepost.errors import IdReused, InvalidMessage, TooLarge, WrongVersion
from milepost.log.codec import Codec, check_stream
from milepost.log.connections import Executor, Row
from milepost.log.instrument import AppendInstrument, Seen
from milepost.log.message import Appended
from milepost.log.statements import Statements

MAX_MESSAGES = 10_000
"""The most messages of one append: it is one transaction and one parameter."""

_REUSED = {
    "id_reused": "is there already with other content; nothing was written",
    "ids_partly_known": "is there already, but others of this append are not; nothing was written",
}

_TOO_DEEP = re.compile(r"messages_(data|metadata)_depth")


class Appender:
    """Appends messages through whatever runs its statement."""

    def __init__(self, statements: Statements, codec: Codec, instruments: Sequence[AppendInstrument] = ()) -> None:
        self._statements = statements
        self._codec = codec
        self._instruments = instruments

    async def append(
        self, executor: Executor, stream: str, payloads: Sequence[Any], *, expected: int, wake: bool
    ) -> Appended:
        """Appends to one stream, atomically."""
        with Seen(self._instruments, [(stream, payloads)], sends=True) as seen:
            prepared = self._prepared(stream, payloads, seen.carrier, expected=expected, wake=wake)
            appended = replace(await self.send(executor, prepared), count=len(payloads))
            seen.appended = [appended]
            return appended

    def prepared(self, stream: str, payloads: Sequence[Any], *, expected: int, wake: bool) -> Mapping[str, Any]:
        """An append to one stream, checked and encoded, to be sent later."""
        with Seen(self._instruments, [(stream, payloads)], sends=False) as seen:
            return self._prepared(stream, payloads, seen.carrier, expected=expected, wake=wake)

    def _prepared(
        self, stream: str, payloads: Sequence[Any], along: Mapping[str, str], *, expected: int, wake: bool
    ) -> Mapping[str, Any]:
        return {
            "stream": stream,
            "messages": self._encoded(stream, payloads, along).decode(),
            "expected": checked_expected(expected),
            "wake": wake,
        }

    async def send(self, executor: Executor, prepared: Mapping[str, Any]) -> Appended:
        """Sends an append that was prepared."""
        with _refused_nesting():
            rows = await executor.execute(self._statements.get("append"), prepared)
        return _appended(rows[0], prepared["expected"])

    async def append_many(
        self,
        executor: Executor,
        payloads: Mapping[str, Sequence[Any]],
        *,
        expected: Mapping[str, int],
        wake: bool,
    ) -> dict[str, Appended]:
        """Append to several streams: all or nothing. The result has the streams in the order of `payloads`."""
        check_streams(payloads, expected)
        with Seen(self._instruments, list(payloads.items()), sends=True) as seen:
            batches = [
                {"stream": stream, "messages": msgspec.Raw(self._encoded(stream, of_stream, seen.carrier))}
                | ({"expected": checked_expected(expected[stream])} if stream in expected else {})
                for stream, of_stream in payloads.items()
            ]
            parameters = {"batches": msgspec.json.encode(batches).decode(), "wake": wake}
            with _refused_nesting():
                rows = await executor.execute(self._statements.get("append_many"), parameters)
            by_stream = {row[0]: _appended(row, expected.get(row[0], -2)) for row in rows}
            # The function answers in the order in which it locked the streams.
            appended = {
                stream: replace(by_stream[stream], count=len(of_stream)) for stream, of_stream in payloads.items()
            }
            seen.appended = list(appended.values())
            return appended

    def _encoded(self, stream: str, payloads: Sequence[Any], along: Mapping[str, str]) -> bytes:
        check_batch(stream, payloads)
        return self._codec.encode(payloads, along)


def several(messages: Any) -> Sequence[Any]:
    """Return what is to be appended to one stream, one message or a list, as a list."""
    return messages if isinstance(messages, list | tuple) else [messages]


def batches_of(messages: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return the same for each of several streams."""
    if not isinstance(messages, Mapping):
        raise InvalidMessage("messages", f"a dict of streams is wanted, not {type(messages).__name__}")
    return {stream: several(of_stream) for stream, of_stream in messages.items()}


def check_batch(stream: str, payloads: Sequence[Any]) -> None:
    """Refuses what cannot be appended to a stream at once."""
    check_stream(stream)
    if not payloads:
        raise InvalidMessage("messages", f"at least one for stream {stream!r} is wanted")
    if len(payloads) > MAX_MESSAGES:
        raise _too_many(len(payloads))


def _too_many(count: int) -> TooLarge:
    return TooLarge("messages", f"{count:,} of them, over the limit of {MAX_MESSAGES:,} an append")


def check_streams(streams: Mapping[str, Sequence[Any]], expected: Collection[str]) -> None:
    """Refuses an append to several streams that has no or too many messages, or expects something of others."""
    if not streams:
        raise InvalidMessage("messages", "at least one stream with one message is wanted")
    if (count := sum(map(len, streams.values()))) > MAX_MESSAGES:
        raise _too_many(count)
    if unknown := set(expected) - set(streams):
        raise InvalidMessage("expected", f"stream {min(unknown)!r} is not among those appended to")


def checked_expected(expected: int) -> int:
    """The version that a stream must have, as a number; what can be none is refused."""
    if not isinstance(expected, int) or isinstance(expected, bool) or not -2 <= expected < 2**63:
        raise InvalidMessage("expected", f"ANY, NO_STREAM, STREAM_EXISTS or a version is wanted, not {expected!r}")
    return int(expected)


@contextmanager
def _refused_nesting() -> Iterator[None]:
    """Say in words what only the database finds: to count levels here would cost an append of many too much."""
    try:
        yield
    except Exception as error:
        # Callers' connections have errors of several drivers. The text of each has the constraint's name.
        if found := _TOO_DEEP.search(str(error)):
            raise InvalidMessage(found[1], "it is nested too deeply: 500 levels are the most") from error
        raise


def _appended(row: Row, expected: int) -> Appended:
    stream, outcome, version, position, id_in_the_way = row
    if outcome == "wrong_version":
        raise WrongVersion(stream, expected, version)
    if outcome in _REUSED:
        raise IdReused(stream, id_in_the_way, _REUSED[outcome])
    return Appended(stream, version, position, outcome == "duplicate")
