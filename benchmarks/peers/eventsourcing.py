"""eventsourcing: a projection that records its position with each event, as its documentation has it.

It handles events one after the other, in the order of the log.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from psycopg.conninfo import conninfo_to_dict

from benchmarks.messages import data
from benchmarks.peers.trial import STREAMS, Arrivals, Peer, Write, run

FILL = 1_000
"""Events a transaction of the backlog."""


class Order(Aggregate):
    """A stream: its messages are the events of an order."""

    @event("Placed")
    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    @event("Changed")
    def change(self, content: dict[str, Any]) -> None:
        """One more event."""
        self.content = content


class Orders:
    """Orders that get an event each in turn."""

    def __init__(self) -> None:
        self._orders: list[Order] = []

    def changed(self, number: int) -> Order:
        """The order that has the event with this number as its next."""
        if len(self._orders) < STREAMS:
            self._orders.append(Order(data(number)))
            return self._orders[-1]
        order = self._orders[number % STREAMS]
        order.change(data(number))
        return order


class Drain(Projection[PostgresTrackingRecorder]):
    """Nothing but the position is recorded."""

    name = "drain"
    arrivals: Arrivals

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        """The handler."""
        self.view.insert_tracking(tracking)
        self.arrivals.note(tracking.notification_id)


class EventsourcingPeer(Peer):
    """An application on PostgreSQL and the runner of its projection."""

    package = "eventsourcing"

    def prepare(self) -> None:
        """Tables are made by the application."""
        self._application().close()

    def fill(self, count: int) -> None:
        """A thousand events a transaction, each of another aggregate."""
        application, orders = self._application(), Orders()
        for begin in range(0, count, FILL):
            application.save(*(orders.changed(number) for number in range(begin, min(begin + FILL, count))))
        application.close()

    def work(self, arrivals: Arrivals) -> None:
        """Runs the projection in the runner's thread."""
        Drain.arrivals = arrivals
        with ProjectionRunner(
            application_class=Application[UUID],
            projection_class=Drain,
            view_class=PostgresTrackingRecorder,
            env=self.environment(),
        ) as runner:
            while not arrivals.complete.wait(0.1):
                runner.run_forever(timeout=0)

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """One event a transaction."""
        application, orders = self._application(), Orders()

        def write(number: int) -> int:
            (recording,) = application.save(orders.changed(number))
            return int(recording.notification.id)

        yield write
        application.close()

    def environment(self) -> dict[str, str]:
        """Its settings; a password is wanted also where none is asked for."""
        given = conninfo_to_dict(self.url)
        return {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": str(given["dbname"]),
            "POSTGRES_HOST": str(given["host"]),
            "POSTGRES_PORT": str(given.get("port") or 5432),
            "POSTGRES_USER": str(given["user"]),
            "POSTGRES_PASSWORD": str(given.get("password") or "none"),
        }

    def _application(self) -> Any:
        return Application[UUID](self.environment())


if __name__ == "__main__":
    run(EventsourcingPeer)
