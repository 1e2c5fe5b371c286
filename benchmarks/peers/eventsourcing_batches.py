"""eventsourcing without its runner: a subscription whose position is recorded once for many events.

Its documentation shows both parts and not this use of them: an event after the last record is handled again after
a restart.
"""

from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.postgres import PostgresFactory, PostgresTrackingRecorder
from eventsourcing.projection import ApplicationSubscription
from eventsourcing.utils import Environment

from benchmarks.peers.eventsourcing import EventsourcingPeer
from benchmarks.peers.trial import Arrivals, run

BATCH = 500
"""As many as its subscription reads at a time."""


class EventsourcingBatchesPeer(EventsourcingPeer):
    """The same log, followed by hand."""

    def work(self, arrivals: Arrivals) -> None:
        """Reads, and records the position now and then."""
        application = Application[UUID](self.environment())
        factory = PostgresFactory(Environment("drain", self.environment()))
        view = factory.tracking_recorder(PostgresTrackingRecorder)
        with ApplicationSubscription(application, gt=view.max_tracking_id(application.name)) as subscription:
            for _event, tracking in subscription:
                arrivals.note(tracking.notification_id)
                if len(arrivals.times) % BATCH == 0 or arrivals.complete.is_set():
                    view.insert_tracking(tracking)
                if arrivals.complete.is_set():
                    subscription.stop()
        application.close()


if __name__ == "__main__":
    run(EventsourcingBatchesPeer)
