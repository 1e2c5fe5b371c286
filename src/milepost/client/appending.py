"""Appends over HTTP. Every message has its id before it is sent, so that sending it again writes nothing twice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from milepost.client.messages import with_ids
from milepost.client.node import path
from milepost.client.requests import Request, Requests, encoded
from milepost.log.appender import check_batch, check_streams, checked_expected
from milepost.log.codec import Codec
from milepost.log.message import ANY, STREAM_EXISTS, Appended

_WORDS: Final = {int(ANY): "any", int(STREAM_EXISTS): "stream_exists"}


class AppendedToStreams(msgspec.Struct, frozen=True):
    """What became of an append to several streams, in the order of the request."""

    appended: list[Appended]


class Appending:
    """Appends for a client."""

    def __init__(self, requests: Requests, codec: Codec) -> None:
        self._requests = requests
        self._codec = codec

    async def append(self, stream: str, payloads: Sequence[Any], expected: int) -> Appended:
        """Appends to one stream, atomically."""
        check_batch(stream, payloads)
        word = _expected(expected)
        messages, fresh = with_ids(self._codec, payloads)
        request = Request(
            method="POST",
            path=path("streams", stream),
            query=[("expected", str(word))],
            body=self._codec.encode(messages),
        )
        appended = (await self._requests.ask(request)).as_(Appended)
        return _first_time(appended) if fresh else appended

    async def append_many(
        self, batches: Mapping[str, Sequence[Any]], expected: Mapping[str, int]
    ) -> dict[str, Appended]:
        """Appends to several streams: all or nothing."""
        check_streams(batches, expected)
        body: list[dict[str, Any]] = []
        fresh: set[str] = set()
        for stream, payloads in batches.items():
            check_batch(stream, payloads)
            messages, is_fresh = with_ids(self._codec, payloads)
            raw = msgspec.Raw(self._codec.encode(messages))
            word = _expected(expected.get(stream, ANY))
            body.append({"stream": stream, "messages": raw, "expected": word})
            fresh |= {stream} if is_fresh else set()
        request = Request(method="POST", path=path("streams"), body=encoded(body))
        told = (await self._requests.ask(request)).as_(AppendedToStreams)
        return {each.stream: _first_time(each) if each.stream in fresh else each for each in told.appended}


def _first_time(appended: Appended) -> Appended:
    """Ids that were new can be there already only because the same call was sent before."""
    return replace(appended, duplicate=False)


def _expected(expected: int) -> int | str:
    number = checked_expected(expected)
    return _WORDS.get(number, number)
