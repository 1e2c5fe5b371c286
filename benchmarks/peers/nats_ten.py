"""NATS JetStream with ten that share a durable consumer."""

from benchmarks.peers.nats import NatsPeer
from benchmarks.peers.trial import run


class TenNatsPeer(NatsPeer):
    """One client, ten subscriptions to one consumer."""

    consumers = 10


if __name__ == "__main__":
    run(TenNatsPeer)
