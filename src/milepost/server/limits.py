"""How much anybody may ask for."""

from dataclasses import dataclass

LARGEST_MESSAGES_PER_BODY = 16
"""How many messages of the largest size fit into a body."""
BODY_ENVELOPE_BYTES = 65_536
"""Bytes of a body beside its messages."""
CONTAINERS_PER_MIB = 100_000
"""Arrays and objects of a message, for each MiB that it may have."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server bears.

    `body_bytes`: the largest body of an append, or of settlements. Defaults to what sixteen messages of the
    largest size need: 16 MiB.
    `request_bytes`: the largest body of any other request. Defaults to 2 MiB.
    `containers`: how many arrays and objects a message may have, or a body that has no messages. An append may
    have sixteen times as many. Brackets within texts count. Defaults to 100,000 for each MiB of the largest
    message.
    `texts`: how many texts a body may have that is no append. Defaults to 200,000.
    `depth`: how many arrays and objects of a message may be in each other. Defaults to 500.
    `bodies_bytes`: all bodies that are arriving, together. Defaults to 256 MiB.
    `form_bytes`: the largest form that a page of the console sends. Defaults to what a message of the largest size
    needs, percent-encoded: 3 MiB.
    `stranger_bytes`: the largest form of somebody who has not logged in. Defaults to 8 KiB.
    `strangers_bytes`: all of their forms that are arriving, together; beyond it those are refused that have been
    arriving for longest. Defaults to 4 MiB.
    `body_seconds`: how long a body may take to arrive. Defaults to 60.
    `rest_seconds`: how long the rest of a body that nobody reads any more may take, so that its sender gets to the
    answer. Defaults to 5.
    `url_bytes`: the longest address, with its parameters. Defaults to 32 KiB.
    `head_bytes`: the largest head of a request, the address included; and how much may come between two pieces of
    a body, such as trailers. Defaults to 64 KiB.
    `head_seconds`: how long a head may take to arrive, how long a form of somebody who has not logged in, and how
    long TLS may take to begin. Defaults to 10.
    `stalled_seconds`: after how long somebody who does not take the answer is left. Defaults to 30.
    `answers_bytes`: all answers that wait until their clients take more of them, together; beyond it those
    connections end that have waited for longest. Defaults to 256 MiB.
    `pipelined`: how many requests of a connection may wait for the answer to one before them. What comes beyond is
    dropped, and the connection ends after their answers. Defaults to 16.
    `connections`: how many there may be. For one more, the one ends that has been silent for longest: without a
    request under way. Defaults to 2,000.
    `followers`: how many of them may follow. Defaults to 1,000.
    `consumers`: how many of them may be consumers. Defaults to 1,500.
    `frame_bytes`: the largest frame that a consumer may send. Defaults to 1 MiB.
    `read_seconds`: how long a read may look for messages. Defaults to 30.
    """

    body_bytes: int = LARGEST_MESSAGES_PER_BODY * 2**20 + BODY_ENVELOPE_BYTES
    request_bytes: int = 2 * 2**20
    containers: int = CONTAINERS_PER_MIB
    texts: int = 200_000
    depth: int = 500
    bodies_bytes: int = 256 * 2**20
    form_bytes: int = 3 * 2**20 + BODY_ENVELOPE_BYTES
    stranger_bytes: int = 8 * 2**10
    strangers_bytes: int = 4 * 2**20
    body_seconds: float = 60
    rest_seconds: float = 5
    url_bytes: int = 32 * 2**10
    head_bytes: int = 64 * 2**10
    head_seconds: float = 10
    stalled_seconds: float = 30
    answers_bytes: int = 256 * 2**20
    pipelined: int = 16
    connections: int = 2000
    followers: int = 1000
    consumers: int = 1500
    frame_bytes: int = 2**20
    read_seconds: float = 30

    @classmethod
    def of(cls, max_message_bytes: int) -> "Limits":
        """Those that fit messages of this size."""
        body = LARGEST_MESSAGES_PER_BODY * max_message_bytes + BODY_ENVELOPE_BYTES
        form = 3 * max_message_bytes + BODY_ENVELOPE_BYTES
        containers = max(CONTAINERS_PER_MIB, CONTAINERS_PER_MIB * max_message_bytes // 2**20)
        bodies = max(cls.bodies_bytes, 2 * body)
        return cls(body_bytes=body, containers=containers, bodies_bytes=bodies, form_bytes=form)


MAX_PAGE_ITEMS = 1000
"""The most messages or deliveries of one answer."""
DEFAULT_PAGE_ITEMS = 100
"""How many there are unless somebody says otherwise."""
PAGE_BYTES = 8 * 2**20
"""After so many bytes of messages an answer ends, and the next goes on."""
MAX_WAIT_SECONDS = 60
"""Seconds that a request may wait for something to happen."""
