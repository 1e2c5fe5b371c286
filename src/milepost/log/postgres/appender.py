"""Append messages: one function of the schema, one round trip."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from milepost.errors import IdReused, InvalidMessage, WrongVersion
from milepost.log.message import Appended
from milepost.log.protocol import PreparedAppend
from milepost.postgres.connections import Executor, ResultRow
from milepost.postgres.statements import Statements

_REUSED_ID_TEXTS = {
    "id_reused": "is there already with other content; nothing was written",
    "ids_partly_known": "is there already, but others of this append are not; nothing was written",
}

_TOO_DEEP = re.compile(r"messages_(data|metadata)_depth")


async def send_appends(
    executor: Executor, statements: Statements, batches: Sequence[PreparedAppend], *, wake: bool
) -> list[Appended]:
    """Append to one stream or several, all or nothing; the results are in the order given."""
    if len(batches) == 1:
        [batch] = batches
        parameters = {
            "stream": batch.stream,
            "messages": batch.messages.decode(),
            "expected": batch.expected,
            "wake": wake,
        }
        with _translate_nesting_error():
            rows = await executor.execute(statements.get("append"), parameters)
        return [_appended_from_row(rows[0], batch)]
    encoded = [
        {"stream": batch.stream, "messages": msgspec.Raw(batch.messages), "expected": batch.expected}
        for batch in batches
    ]
    with _translate_nesting_error():
        rows = await executor.execute(
            statements.get("append_many"), {"batches": msgspec.json.encode(encoded).decode(), "wake": wake}
        )
    # The function answers in the order in which it locked the streams, or with what stood in the way alone.
    batch_of = {batch.stream: batch for batch in batches}
    appended = {row[0]: _appended_from_row(row, batch_of[row[0]]) for row in rows}
    return [appended[batch.stream] for batch in batches]


@contextmanager
def _translate_nesting_error() -> Iterator[None]:
    """Say in words what only the database finds: to count levels here would cost an append of many too much."""
    try:
        yield
    except Exception as error:
        # Callers' connections have errors of several drivers. The text of each has the constraint's name.
        if found := _TOO_DEEP.search(str(error)):
            raise InvalidMessage(found[1], "it is nested too deeply: 500 levels are the most") from error
        raise


def _appended_from_row(row: ResultRow, batch: PreparedAppend) -> Appended:
    stream, outcome, version, position, id_in_the_way = row
    if outcome == "wrong_version":
        raise WrongVersion(stream, batch.expected, version)
    if outcome in _REUSED_ID_TEXTS:
        raise IdReused(stream, id_in_the_way, _REUSED_ID_TEXTS[outcome])
    return Appended(stream, version, position, outcome == "duplicate", batch.count)
