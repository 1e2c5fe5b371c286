"""Who writes over HTTP: one connection that is kept, and nothing that a client library would add."""

import asyncio

import msgspec

from benchmarks.logs import Log
from benchmarks.messages import BATCH, TYPE, data, properties, stream_name
from benchmarks.writers import Writer


class HttpWriter(Writer):
    """`POST /v1/streams/…` with one message."""

    def __init__(self, log: Log, port: int) -> None:
        super().__init__(log)
        self._port = port

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def write(self) -> int:
        number = self._stream()
        body = msgspec.json.encode(self._body(number))
        self._writer.write(
            b"POST /v1/streams/%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (stream_name(number).encode(), len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"an append was refused: {answer.decode()}")
        position: int = msgspec.json.decode(answer)["position"]
        return position

    def _body(self, number: int) -> object:
        return {"type": TYPE, "data": data(number), "properties": properties(number)}

    async def close(self) -> None:
        self._writer.close()


class HttpBatchWriter(HttpWriter):
    """The same with a hundred of them."""

    messages = BATCH

    def _body(self, number: int) -> object:
        return [super()._body(number)] * BATCH
