"""depeche_db: its executor, large batches that are acknowledged together, streams hashed to a few partitions.

With a partition for each of 5,000 streams, 4,000 messages took more than a minute. The driver is psycopg 2: it
drains as fast as with psycopg 3, and its latency was lower.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4
from zlib import crc32

import pydantic
import sqlalchemy
from depeche_db import AckStrategy, Executor, MessageHandlerRegister, MessageStore, StoredMessage
from depeche_db.tools import PydanticMessageSerializer
from psycopg.conninfo import conninfo_to_dict

from benchmarks.messages import data, stream_name
from benchmarks.peers.trial import STREAMS, Arrivals, Peer, Write, run

PARTITIONS = 16
BATCH = 500
"""Messages of a partition at a time. Its default is 10."""
UPDATE_BATCH = 1_000
"""Messages that the aggregated stream takes up at a time. Its default is 100."""
FILL = 1_000
"""Messages a transaction of the backlog."""


class Placed(pydantic.BaseModel):
    """The message."""

    content: dict[str, Any]
    message_id: UUID = pydantic.Field(default_factory=uuid4)
    time: datetime = pydantic.Field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    def get_message_id(self) -> UUID:
        """What makes it unique."""
        return self.message_id

    def get_message_time(self) -> datetime:
        """When it happened."""
        return self.time


class Partitioner:
    """The same partition for all messages of a stream."""

    def get_partition(self, message: StoredMessage[Placed]) -> int:
        """Its number."""
        return crc32(message.stream.encode()) % PARTITIONS


class DepechePeer(Peer):
    """One executor with the projector of an aggregated stream and one subscription to it."""

    package = "depeche-db"

    def prepare(self) -> None:
        """Tables are made by the objects that use them."""
        self._stream(self._store())

    def fill(self, count: int) -> None:
        """It writes one message a statement."""
        store = self._store()
        for begin in range(0, count, FILL):
            with store.engine.connect() as connection:
                for number in range(begin, min(begin + FILL, count)):
                    store.write(stream_name(number % STREAMS), Placed(content=data(number)), conn=connection)
                connection.commit()

    def work(self, arrivals: Arrivals) -> None:
        """Runs the executor until a signal, which is how it is stopped."""
        arrivals.on_complete = lambda: os.kill(os.getpid(), signal.SIGTERM)
        handlers = MessageHandlerRegister[Placed]()

        @handlers.register
        def handle(message: StoredMessage[Placed]) -> None:
            arrivals.note(message.global_position)

        stream = self._stream(self._store())
        subscription = stream.subscription(
            name="drain", handlers=handlers, batch_size=BATCH, ack_strategy=AckStrategy.BATCHED
        )
        executor = Executor(db_dsn=self._address().render_as_string(hide_password=False))
        executor.register(stream.projector)
        executor.register(subscription.runner)
        executor.run()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """One transaction a message."""
        store = self._store()

        def write(number: int) -> int:
            written = store.write(stream_name(number % STREAMS), Placed(content=data(number)))
            return int(written.global_position)

        yield write

    def _store(self) -> Any:
        engine = sqlalchemy.create_engine(self._address())
        return MessageStore[Placed](name="bench", engine=engine, serializer=PydanticMessageSerializer(Placed))

    def _address(self) -> sqlalchemy.URL:
        given = {name: str(value) for name, value in conninfo_to_dict(self.url).items() if value}
        place = {name: value for name, value in given.items() if name in ("host", "port")}
        return sqlalchemy.URL.create(
            "postgresql+psycopg2", given["user"], given.get("password"), database=given["dbname"], query=place
        )

    def _stream(self, store: Any) -> Any:
        return store.aggregated_stream(
            name="everything",
            partitioner=Partitioner(),
            stream_wildcards=["%"],
            update_batch_size=UPDATE_BATCH,
        )


if __name__ == "__main__":
    run(DepechePeer)
