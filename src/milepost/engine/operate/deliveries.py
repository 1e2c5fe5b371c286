"""The deliveries of a subscription: choose, list and count them, and decide about them."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from milepost.dispatch import State
from milepost.engine.operate.info import SubscriptionOverview
from milepost.engine.runtime import Runtime
from milepost.errors import MilepostError
from milepost.log.codec import check_text
from milepost.log.message import Message
from milepost.log.query import PAGE_BYTES
from milepost.names import MAX_POSITION_NUMBER, suggestion
from milepost.progress.deliveries import (
    Decided,
    Decision,
    DeliveryChoice,
    NamedDeliveries,
    SeenDelivery,
    StoredDelivery,
)
from milepost.progress.postgres.deliveries import PostgresDeliveries

States = str | Iterable[str]
Positions = int | Iterable[int]


def choice_to_list(
    *, state: States | None, key: str | None, reason: str | None, after: int, up_to: int | None
) -> DeliveryChoice:
    """What is to be listed or counted."""
    states = frozenset(State) if state is None else _states(state, frozenset(State), "there is")
    _check_texts(key=key, reason=reason)
    return DeliveryChoice(
        states=states, key=key, reason=reason, after=_number("after", after), up_to=_checked_last("up_to", up_to)
    )


def choice_to_decide(
    decision: Decision,
    positions: Positions | None,
    *,
    all: bool,
    after: int,
    up_to: int | None,
    state: States | None,
    key: str | None,
    reason: str | None,
) -> DeliveryChoice | NamedDeliveries:
    """What is to be decided about: positions, or all, or all up to one; exactly one of them."""
    name = decision.name.lower()
    given = [word for word, is_given in _ways_to_choose(positions, all, up_to) if is_given]
    if len(given) != 1:
        found = f"{' and '.join(given)} exclude each other" if given else "nothing says which"
        raise TypeError(f"{name}: {found}: give a list of positions, or all=True, or up_to=position")
    _check_texts(key=key, reason=reason)
    if positions is None:
        usual = frozenset({State.PARKED})
        states = usual if state is None else _states(state, decision.applies_to, f"{name} takes")
        return DeliveryChoice(
            states=states,
            key=key,
            reason=reason,
            after=_number("after", after),
            up_to=_checked_last("up_to", up_to),
        )
    if key is not None or reason is not None or after:
        raise TypeError(f"{name}: key, reason and after go with all=True and up_to, not with positions")
    states = decision.applies_to if state is None else _states(state, decision.applies_to, f"{name} takes")
    several = [positions] if isinstance(positions, int) else positions
    return NamedDeliveries(
        positions=sorted({_number("positions", position) for position in several}), states=states
    )


def checked_limit(limit: int | None) -> int | None:
    """How many at most."""
    return None if limit is None else _number("limit", limit)


def _check_texts(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None:
            check_text(name, text)


def _ways_to_choose(positions: object, all: bool, up_to: object) -> Iterator[tuple[str, bool]]:
    yield "positions", positions is not None
    yield "all", all
    yield "up_to", up_to is not None


def _states(given: States, allowed: frozenset[State], verb: str) -> frozenset[State]:
    states = [given] if isinstance(given, str) else list(given)
    for state in states:
        if state not in allowed:
            raise ValueError(
                f"{verb} no state {state!r}{suggestion(str(state), sorted(one.value for one in allowed))}"
            )
    if not states:
        raise ValueError("state: an empty list means none; leave it out for the usual ones")
    return frozenset(map(State, states))


def _checked_last(name: str, value: int | None) -> int:
    return MAX_POSITION_NUMBER if value is None else _number(name, value)


def _number(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_POSITION_NUMBER:
        raise ValueError(f"{name}: a number from 0 on is wanted, not {value!r}")
    return value


MAX_DECISION_DELIVERIES = 1000
"""How many deliveries one transaction changes."""
DELIVERY_PAGE_ROWS = 200
"""How many are loaded at once."""

T = TypeVar("T")

OnBatch = Callable[[int], None]


class DeliveryInfo(StoredDelivery, frozen=True, kw_only=True):
    """A message that needs attention of its own."""

    message: Message[Any] | None
    """None: it is no longer in the log."""


class SubscriptionDeliveries:
    """The deliveries of one subscription; in PostgreSQL only."""

    def __init__(self, runtime: Runtime, group: str, name: str) -> None:
        self._runtime = runtime
        self._group = group
        self._name = name

    async def pages(self, choice: DeliveryChoice, limit: int | None) -> AsyncGenerator[list[DeliveryInfo], None]:
        """Those that are meant, at most so many, in order: in lists with a bounded number and size of messages."""
        stored = await self._stored()
        left = MAX_POSITION_NUMBER if limit is None else limit
        async with aclosing(stored.chosen(choice)) as chosen:
            async for seen in chosen:
                for part in _in_parts([each.position for each in seen[:left]], DELIVERY_PAGE_ROWS):
                    for page in _split_by_size(await stored.at(part)):
                        yield await self._with_messages(page)
                        left -= len(page)
                if left <= 0:
                    return

    async def count(self, choice: DeliveryChoice) -> int:
        """How many are meant."""
        async with aclosing((await self._stored()).chosen(choice)) as chosen:
            return sum([len(seen) async for seen in chosen])

    async def decide(
        self,
        decision: Decision,
        meant: DeliveryChoice | NamedDeliveries,
        *,
        limit: int | None = None,
        on_batch: OnBatch | None = None,
    ) -> Decided:
        """Decides about those that are meant, the lowest position first, in transactions of a thousand."""
        stored = await self._stored()
        moved, refused, last = 0, dict[int, str](), None
        async with aclosing(
            stored.chosen(meant) if isinstance(meant, DeliveryChoice) else _single_page(meant)
        ) as chosen:
            async for seen in chosen:
                at = 0
                while at < len(seen) and moved != limit:
                    most = (
                        MAX_DECISION_DELIVERIES if limit is None else min(MAX_DECISION_DELIVERIES, limit - moved)
                    )
                    decided = await stored.decide(decision, seen[at : at + most], meant.states)
                    last = seen[min(at + most, len(seen)) - 1].position
                    at += most
                    moved += decided.moved
                    refused |= decided.refused
                    if on_batch is not None:
                        on_batch(moved)
                if moved == limit:
                    break
        is_cut = isinstance(meant, DeliveryChoice) and moved == limit
        return Decided(moved=moved, refused=refused, next=last if is_cut else None)

    async def _stored(self) -> PostgresDeliveries:
        services = self._runtime.services
        if services.database is None:
            raise MilepostError(
                f"progress is kept {services.progress_location.value}: its deliveries cannot be operated here"
            )
        standing = await SubscriptionOverview(self._runtime).standing(self._group, self._name)
        return services.deliveries(standing.id)

    async def _with_messages(self, page: Sequence[StoredDelivery]) -> list[DeliveryInfo]:
        runtime = self._runtime
        positions = [stored.position for stored in page]
        messages = {m.position: m for m in await runtime.log.messages_at(positions)}
        return [
            DeliveryInfo(message=messages.get(stored.position), **msgspec.structs.asdict(stored))
            for stored in page
        ]


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The same in lists of at most this size."""
    return (items[at : at + size] for at in range(0, len(items), size))


def _split_by_size(page: Sequence[StoredDelivery]) -> Iterator[Sequence[StoredDelivery]]:
    """Parts of a page whose messages are not too large together."""
    part: list[StoredDelivery] = []
    size = 0
    for stored in page:
        if part and size + stored.size > PAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(stored)
        size += stored.size
    if part:
        yield part


async def _single_page(named: NamedDeliveries) -> AsyncGenerator[list[SeenDelivery], None]:
    yield [SeenDelivery(position) for position in named.positions]
