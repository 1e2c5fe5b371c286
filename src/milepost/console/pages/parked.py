"""Messages that need attention of their own: what became of them, and what a person decides."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.entry import Entry
from milepost.console.pages.subscription import managed
from milepost.console.payload import LONGEST, payload_of
from milepost.console.planning import Outlook, of_retry, of_skip
from milepost.console.snapshot import Snapshot
from milepost.console.visit import Visit, problem_of
from milepost.console.words import several
from milepost.dispatch import State
from milepost.engine.deliveries import DeliveryInfo
from milepost.engine.managed import ManagedSubscription
from milepost.errors import InvalidMessage
from milepost.progress.deliveries import Decided, Decision
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.problems import INTERNAL, NOT_FOUND, Refused
from milepost.server.wire.values import checked

ENTRY = Entry("Parked", "parked")
PATH = "/parked"
ONE = f"{PATH}/{{group:str}}/{{name:str}}"
PAGE = 50
"""Deliveries on a page."""
NAMED = 5
"""Refused positions that are named one by one."""
STATES: Sequence[State] = (
    State.PARKED,
    State.RETRYING,
    State.WAITING,
    State.UNROUTED,
    State.RUNNING,
    State.SKIPPED,
)
"""Those that one can look at, in the order of how much they matter."""

_DECISIONS = {"retry": Decision.RETRY, "skip": Decision.SKIP}


@dataclass(frozen=True)
class Search:
    """Which deliveries one looks at."""

    state: State
    reason: str | None
    key: str | None
    after: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Search":
        """As the address says."""
        with checked("state"):
            state = State(query.get("state") or State.PARKED)
        return cls(
            state,
            query.get("reason") or None,
            query.get("key") or None,
            _number("after", query.get("after") or "0"),
        )

    def decisions(self) -> list[str]:
        """What may be decided about these."""
        return [name for name, decision in _DECISIONS.items() if self.state in decision.applies_to]


# Looking


@get(PATH, opt=needs(Role.READ, Within.ITSELF))
async def everywhere(visit: NamedDependency[Visit]) -> Answer:
    """Which subscriptions have any."""

    async def load(snapshot: Snapshot) -> Mapping[str, Any]:
        return {"found": [info for info in snapshot.subscriptions if _has_any(info)]}

    return await visit.live("parked_everywhere.html", load)


def _has_any(info: Any) -> bool:
    return bool(info.parked or info.retrying or info.waiting or info.unrouted)


@get(ONE, opt=needs(Role.READ, Within.SUBSCRIPTION))
async def listed(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """A page of them. The counts follow; what one is about to choose from does not move."""
    subscription = managed(visit, group, name)
    search = Search.of(visit.query)

    async def load(snapshot: Snapshot) -> Mapping[str, Any]:
        # While the page is open, it may come to select more than its reader may see.
        await visit.reach.check_subscription(group, name)
        info = snapshot.by_address.get(f"{group}/{name}") or await subscription.info()
        return {"info": info, "search": search, "states": STATES}

    async def once() -> Mapping[str, Any]:
        found, more = await _page(subscription, search)
        return {
            "found": [each for each in found if _may_be_seen(visit, each)],
            "more": more,
            "last": found[-1].position if found else 0,
            "decisions": search.decisions(),
            "now": datetime.now(UTC),
            "again": visit.url("parked", group, name, **visit.query),
        }

    return await visit.live("parked.html", load, once)


async def _page(subscription: ManagedSubscription, search: Search) -> tuple[list[DeliveryInfo], bool]:
    """A page, and whether there are more."""
    pages = subscription.delivery_pages(
        state=search.state, key=search.key, reason=search.reason, after=search.after, limit=PAGE + 1
    )
    found: list[DeliveryInfo] = []
    async with aclosing(pages):
        async for page in pages:
            found += page
    return found[:PAGE], len(found) > PAGE


@get(f"{ONE}/{{position:int}}", opt=needs(Role.READ, Within.SUBSCRIPTION))
async def one(
    visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str], position: FromPath[int]
) -> Answer:
    """Everything about one of them: on a page of its own, or for a script within the list."""
    found = await _delivery(visit, managed(visit, group, name), position)
    message = found.message
    longest = None if "whole" in visit.query else LONGEST
    context: dict[str, Any] = {
        "group": group,
        "name": name,
        "delivery": found,
        "payload": None if message is None else payload_of(message.raw, longest),
        "decisions": [word for word, decision in _DECISIONS.items() if found.state in decision.applies_to],
    }
    if "part" in visit.query:
        return visit.fragment("parts/delivery.html", **context)
    return visit.page("delivery.html", **context)


def _may_be_seen(visit: Visit, delivery: DeliveryInfo) -> bool:
    """Return False for a message of another category, which was selected before."""
    return delivery.message is None or visit.visitor.scope.has_stream(delivery.message.stream)


async def _delivery(visit: Visit, subscription: ManagedSubscription, position: int) -> DeliveryInfo:
    deliveries = subscription.deliveries(after=max(0, position - 1), up_to=position, limit=1)
    async with aclosing(deliveries):
        async for delivery in deliveries:
            if _may_be_seen(visit, delivery):
                return delivery
    raise Refused(
        NOT_FOUND,
        f"Position {position} has no delivery: it was handled, is not reached yet, or is not for this one.",
    )


# Deciding


@dataclass(frozen=True)
class Chosen:
    """Which deliveries are meant."""

    positions: Sequence[int] | None
    up_to: int | None
    state: State
    key: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, form: Mapping[str, str]) -> "Chosen":
        """As a form says: `positions`, or `up_to`, or else all in a state, of a key and with a reason."""
        with checked("state"):
            state = State(form.get("state") or State.PARKED)
        scope, key, reason = form.get("scope"), form.get("key") or None, form.get("reason") or None
        if scope == "positions":
            return cls(_positions(form.get("positions", "")), None, state)
        if scope == "up_to":
            return cls(None, _number("up_to", form.get("up_to", "")), state, key, reason)
        if scope == "all":
            return cls(None, None, state, key, reason)
        raise InvalidMessage("scope", "say which")

    async def count(self, subscription: ManagedSubscription) -> int:
        """How many they are."""
        if self.positions is not None:
            return len(self.positions)
        is_narrowed = any(word is not None for word in (self.up_to, self.key, self.reason))
        if not is_narrowed and self.state in _COUNTED:
            # Counted anyway, however many there are.
            return int(getattr(await subscription.info(), self.state.value))
        return await subscription.count_deliveries(
            state=self.state, key=self.key, reason=self.reason, up_to=self.up_to
        )

    async def decide(self, subscription: ManagedSubscription, decision: Decision) -> Decided:
        """Decides about them."""
        act = subscription.retry if decision is Decision.RETRY else subscription.skip
        if self.positions is not None:
            # Somebody else may have decided since this person looked.
            return await act(self.positions, state=self.state)
        if self.up_to is not None:
            return await act(up_to=self.up_to, state=self.state, key=self.key, reason=self.reason)
        return await act(all=True, state=self.state, key=self.key, reason=self.reason)


_COUNTED = (State.PARKED, State.RETRYING, State.WAITING, State.UNROUTED)


@get(f"{ONE}/plan/{{action:str}}", opt=needs(Role.READ, Within.SUBSCRIPTION))
async def plan(
    visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str], action: FromPath[str]
) -> Answer:
    """What a decision would do, for the dialog that asks."""
    try:
        count = await Chosen.of(visit.query).count(managed(visit, group, name))
    except Exception as error:
        problem = problem_of(error)
        if problem.status == INTERNAL.status:
            raise
        return visit.fragment("parts/plan.html", outlook=None, problem=problem.detail)
    if not count:
        return visit.fragment("parts/plan.html", outlook=None, problem="There is none of them: choose others.")
    return visit.fragment("parts/plan.html", outlook=_outlook(action, count), problem=None)


def _outlook(action: str, count: int) -> Outlook:
    return of_retry(count) if _decision(action) is Decision.RETRY else of_skip(count)


def _decision(action: str) -> Decision:
    if action not in _DECISIONS:
        raise Refused(NOT_FOUND, f"There is no action {action!r}.")
    return _DECISIONS[action]


@post(f"{ONE}/{{action:str}}", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def decide(
    visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str], action: FromPath[str]
) -> Answer:
    """Has them tried again, or passes them over."""
    form = {field: values[-1] for field, values in visit.form.items()}
    decision = _decision(action)

    async def work() -> str:
        deciding = Chosen.of(form).decide(managed(visit, group, name), decision)
        with checked("positions"):
            return _said(decision, await visit.served.stopping.unless_begun(deciding))

    back = visit.url(
        "parked", group, name, state=form.get("state"), reason=form.get("reason"), key=form.get("key")
    )
    return await visit.attempt(back, work())


def _said(decision: Decision, decided: Decided) -> str:
    verb = "tried again" if decision is Decision.RETRY else "skipped"
    words = f"{several(decided.moved, 'message is', 'messages are')} {verb}."
    if not decided.refused:
        return words
    named = [f"{position}: {why}" for position, why in list(decided.refused.items())[:NAMED]]
    more = len(decided.refused) - len(named)
    left = f"\nand {more:,} more" if more else ""
    return f"{words} Not so {several(len(decided.refused), 'other')}:\n" + "\n".join(named) + left


def _positions(text: str) -> list[int]:
    return [_number("positions", part) for part in text.split(",") if part.strip()]


def _number(field: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or len(text) > 19:
        raise InvalidMessage(field, f"a position is wanted, not {text[:40]!r}")
    return int(text)


HANDLERS = (everywhere, listed, one, plan, decide)
