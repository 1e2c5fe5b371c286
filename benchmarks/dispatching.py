"""The dispatch core alone: fill, next and ack, as a worker or a server drives it."""

import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

from benchmarks.bench import Bench
from benchmarks.results import Result
from milepost.dispatch import Cursor, ExchangeAnswer, Lane, LaneState, Route, Routes, Settings

MESSAGES = 100_000
PAGE = 1_000
AT_ONCE = 100
STREAMS = 1_000
LOCAL_GOAL = 300_000
"""Messages a second through the path that handlers take."""

ROUTES_GOAL = 0.8
"""How much of the rate with ten routes ten thousand reach: "no more than ten", within the noise."""

LOCAL = "one local consumer"
FEW = "10 filtered routes"
MANY = "10,000 filtered routes, messages for 10 of them"
SPREAD = "10,000 filtered routes, messages for all of them"
QUEUES = "limit: messages to 10 queues"
MANY_QUEUES = "limit: messages to 10,000 queues"
"""What going to many places costs by itself: a processor keeps few of them at hand."""


class Example:
    """What dispatch looks at in a message, and nothing else."""

    __slots__ = ("customer", "position", "properties", "size", "stream")

    def __init__(self, position: int, stream: str, customer: int) -> None:
        self.position = position
        self.size = 200
        self.stream = stream
        self.customer = customer
        self.properties = {"customer": customer, "region": "EU"}


Page = tuple[list[Example], list[str]]
Work = Callable[[], float]


def measure(bench: Bench) -> list[Result]:
    """Pure Python: it needs no server."""
    works = _works()
    rates: dict[str, list[float]] = {name: [] for name in works}
    with bench.steps("dispatch", bench.sizes.rounds * len(works)) as step:
        for _ in range(bench.sizes.rounds):
            for name, work in works.items():
                rates[name].append(_rate(work))
                step()
    middle = {name: median(found) for name, found in rates.items()}
    limit = Result(work=f"dispatch: {LOCAL}", subject="limit", value=middle.pop("limit"), unit="messages/s")
    memory = Result(work="dispatch: an open message", subject="milepost", value=_memory(), unit="bytes")
    few_queues = middle[QUEUES]
    results = [_result(name, rate, limit.value, middle[FEW], few_queues) for name, rate in middle.items()]
    return [limit, *results, memory]


def _works() -> dict[str, Work]:
    pages, few, many = _pages(STREAMS), _pages(10), _pages(10_000)
    ten, thousand = [_consumer(None)] * 10, [_consumer(None)] * 1_000
    return {
        "limit": lambda: _raw(pages),
        LOCAL: lambda: _through(_lane(ordered=True), pages),
        "one local consumer, no order": lambda: _through(_lane(ordered=False), pages, ordered=False),
        "10 consumers": lambda: _through(_lane(consumers=ten), pages),
        "1,000 consumers": lambda: _through(_lane(consumers=thousand), pages),
        FEW: lambda: _through(_lane(consumers=list(map(_consumer, range(10)))), few),
        MANY: lambda: _through(_lane(consumers=list(map(_consumer, range(10_000)))), few),
        SPREAD: lambda: _through(_lane(consumers=list(map(_consumer, range(10_000)))), many),
        QUEUES: lambda: _to_queues(10, few),
        MANY_QUEUES: lambda: _to_queues(10_000, many),
    }


def _pages(customers: int) -> list[Page]:
    chance = Random(1)
    messages = [
        Example(position, f"order-{chance.randrange(STREAMS)}", chance.randrange(customers))
        for position in range(1, MESSAGES + 1)
    ]
    parts = [messages[start : start + PAGE] for start in range(0, MESSAGES, PAGE)]
    return [(part, [message.stream for message in part]) for part in parts]


def _consumer(customer: int | None) -> Route:
    return Route(None if customer is None else f"customer == {customer}", capacity=AT_ONCE)


def _lane(*, ordered: bool = True, consumers: Sequence[Route] | None = None) -> Lane[Example]:
    routes: Routes[Example] | None = None if consumers is None else Routes("round_robin")
    settings = Settings(ordered=ordered, window=PAGE)
    state: LaneState[Example] = LaneState(cursor=Cursor(0), now=0.0)
    lane = Lane(settings, state, routes=routes, random=lambda: 0.5)
    for number, route in enumerate(consumers or ()):
        lane.join(f"consumer {number}", [route])
    lane.next(0.0)
    return lane


def _through(lane: Lane[Example], pages: list[Page], *, ordered: bool = True) -> float:
    """Every message through the lane, with a write after each page; the seconds that took."""
    answer: ExchangeAnswer[Example] = ExchangeAnswer(rows=False)
    begun = time.perf_counter()
    for messages, keys in pages:
        lane.fill(messages, keys if ordered else None, messages[-1].position)
        while given := lane.next(0.0, AT_ONCE):
            lane.ack(given)
        lane.exchange(0.0)
        lane.exchanged(answer)
    return time.perf_counter() - begun


def _raw(pages: list[Page]) -> float:
    """A queue and a table of what is open, without order, claims, retries or a cursor."""
    begun = time.perf_counter()
    for messages, _ in pages:
        waiting = deque(messages)
        opened: dict[int, Example] = {}
        while waiting:
            given = [waiting.popleft() for _ in range(min(AT_ONCE, len(waiting)))]
            for message in given:
                opened[message.position] = message
            for message in given:
                del opened[message.position]
    return time.perf_counter() - begun


def _to_queues(count: int, pages: list[Page]) -> float:
    """Each message to the queue of its customer, out of it, and done: no filter, no route, no claim."""
    queues = {customer: _Queue() for customer in range(count)}
    begun = time.perf_counter()
    for messages, _ in pages:
        of_messages = [(queues[message.customer], message) for message in messages]
        for queue, message in of_messages:
            queue.waiting.append(message)
            queue.bytes += message.size
        for queue, _ in of_messages:
            message = queue.waiting.popleft()
            queue.opened[message.position] = message
        for queue, message in of_messages:
            del queue.opened[message.position]
            queue.bytes -= message.size
    return time.perf_counter() - begun


class _Queue:
    """What waits for one customer, and what is open."""

    def __init__(self) -> None:
        self.waiting: deque[Example] = deque()
        self.opened: dict[int, Example] = {}
        self.bytes = 0


def _rate(work: Work) -> float:
    gc.collect()
    return MESSAGES / work()


def _memory() -> float:
    """What a message costs while it is open, beside the message itself."""
    count = 50_000
    messages = [Example(position, f"order-{position}", 1) for position in range(1, count + 1)]
    lane: Lane[Example] = Lane(
        Settings(window=count, window_bytes=2**40), LaneState(cursor=Cursor(0), now=0.0), random=lambda: 0.5
    )
    keys = [message.stream for message in messages]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    lane.fill(messages, keys, count)
    given = lane.next(0.0)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / len(given)


def _result(name: str, rate: float, limit: float, few: float, few_queues: float) -> Result:
    work, subject, unit = f"dispatch: {name}", "milepost", "messages/s"
    if name in (QUEUES, MANY_QUEUES):
        ratio = rate / few_queues
        return Result(work=work, subject="limit", value=rate, unit=unit, of="10 queues", ratio=ratio)
    if name == LOCAL:
        ratio = rate / limit
        return Result(work=work, subject=subject, value=rate, unit=unit, of="limit", ratio=ratio, above=LOCAL_GOAL)
    if name in (MANY, SPREAD):
        ratio = rate / few
        return Result(
            work=work,
            subject=subject,
            value=rate,
            unit=unit,
            of="10 routes",
            ratio=ratio,
            at_least=ROUTES_GOAL,
        )
    return Result(work=work, subject=subject, value=rate, unit=unit)
