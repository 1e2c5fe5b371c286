"""NATS JetStream with ten clients in ten processes that share a durable consumer."""

from benchmarks.peers.nats_clients import NatsClientsPeer
from benchmarks.peers.trial import run


class NatsTenClientsPeer(NatsClientsPeer):
    """Ten clients."""

    clients = 10


if __name__ == "__main__":
    run(NatsTenClientsPeer)
