"""The pages of parked, retrying and other open deliveries, and the decisions on them: retry and skip."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from milepost.console.forms import ChangePreview, preview_retry, preview_skip
from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, NavItem, expected_problem
from milepost.console.search import parse_position
from milepost.console.snapshot import OverviewSnapshot
from milepost.console.templating import MAX_SHOWN_CHARACTERS, format_payload, several
from milepost.dispatch import State
from milepost.engine.operate.deliveries import DeliveryInfo
from milepost.engine.operate.manage import ManagedSubscription
from milepost.errors import InvalidMessage
from milepost.progress.deliveries import Decided, Decision
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.problems import NOT_FOUND, RequestRefused
from milepost.wire.values import refuse_as_invalid

NAV_ITEM = NavItem("Parked", "parked")
PATH = "/parked"
PARKED_PATH = f"{PATH}/{{group:str}}/{{name:str}}"
DELIVERIES_PER_PAGE = 50
"""Deliveries on a page."""
MAX_NAMED_POSITIONS = 5
"""Refused positions that are named one by one."""
STATES: Sequence[State] = (
    State.PARKED,
    State.RETRYING,
    State.WAITING,
    State.UNROUTED,
    State.RUNNING,
    State.SKIPPED,
)
"""The states that can be listed, the most urgent first."""

_DECISIONS = {"retry": Decision.RETRY, "skip": Decision.SKIP}


@dataclass(frozen=True)
class DeliverySearch:
    """The criteria of a list of deliveries."""

    state: State
    reason: str | None
    key: str | None
    after: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "DeliverySearch":
        """Return the criteria of an address."""
        with refuse_as_invalid("state"):
            state = State(query.get("state") or State.PARKED)
        return cls(
            state,
            query.get("reason") or None,
            query.get("key") or None,
            parse_position("after", query.get("after") or "0"),
        )

    def decisions(self) -> list[str]:
        """Return the decisions that apply to these deliveries."""
        return [name for name, decision in _DECISIONS.items() if self.state in decision.applies_to]


# Looking


@get(PATH, opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def list_subscriptions(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show the subscriptions that have open deliveries."""

    async def load(snapshot: OverviewSnapshot) -> Mapping[str, Any]:
        return {"found": [info for info in snapshot.subscriptions if _has_open_deliveries(info)]}

    return await console.live("parked_everywhere.html", load)


def _has_open_deliveries(info: Any) -> bool:
    return bool(info.parked or info.retrying or info.waiting or info.unrouted)


@get(PARKED_PATH, opt=needs(TokenRole.READ, ScopeRule.SUBSCRIPTION))
async def list_deliveries(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Show a page of deliveries. The counts are live; the list to choose from stands still."""
    subscription = console.subscription(group, name)
    search = DeliverySearch.of(console.query)

    async def load(snapshot: OverviewSnapshot) -> Mapping[str, Any]:
        # While the page is open, it may come to select more than its reader may see.
        await console.scope_guard.check_subscription(group, name)
        info = snapshot.by_address.get(f"{group}/{name}") or await subscription.info()
        return {"info": info, "search": search, "states": STATES}

    async def once() -> Mapping[str, Any]:
        found, more = await _load_page(subscription, search)
        return {
            "found": [each for each in found if _may_be_seen(console, each)],
            "more": more,
            "last": found[-1].position if found else 0,
            "decisions": search.decisions(),
            "now": datetime.now(UTC),
            "again": console.url("parked", group, name, **console.query),
        }

    return await console.live("parked.html", load, once)


async def _load_page(subscription: ManagedSubscription, search: DeliverySearch) -> tuple[list[DeliveryInfo], bool]:
    """Return a page, and True if there are more."""
    pages = subscription.delivery_pages(
        state=search.state, key=search.key, reason=search.reason, after=search.after, limit=DELIVERIES_PER_PAGE + 1
    )
    found: list[DeliveryInfo] = []
    async with aclosing(pages):
        async for page in pages:
            found += page
    return found[:DELIVERIES_PER_PAGE], len(found) > DELIVERIES_PER_PAGE


@get(f"{PARKED_PATH}/{{position:int}}", opt=needs(TokenRole.READ, ScopeRule.SUBSCRIPTION))
async def show_delivery(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str], position: FromPath[int]
) -> ConsoleResponse:
    """Show a delivery on a page of its own, or for a script within the list."""
    found = await _load_delivery(console, console.subscription(group, name), position)
    message = found.message
    longest = None if "whole" in console.query else MAX_SHOWN_CHARACTERS
    context: dict[str, Any] = {
        "group": group,
        "name": name,
        "delivery": found,
        "payload": None if message is None else format_payload(message.raw, longest),
        "decisions": [word for word, decision in _DECISIONS.items() if found.state in decision.applies_to],
    }
    if "part" in console.query:
        return console.fragment("parts/delivery.html", **context)
    return console.page("delivery.html", **context)


def _may_be_seen(console: ConsoleRequest, delivery: DeliveryInfo) -> bool:
    """Return False for a message of another category, which was selected before."""
    return delivery.message is None or console.principal.scope.has_stream(delivery.message.stream)


async def _load_delivery(
    console: ConsoleRequest, subscription: ManagedSubscription, position: int
) -> DeliveryInfo:
    deliveries = subscription.deliveries(after=max(0, position - 1), up_to=position, limit=1)
    async with aclosing(deliveries):
        async for delivery in deliveries:
            if _may_be_seen(console, delivery):
                return delivery
    raise RequestRefused(
        NOT_FOUND,
        f"Position {position} has no delivery: it was handled, is not reached yet, or is not for this one.",
    )


# Deciding


@dataclass(frozen=True)
class DecisionTarget:
    """The deliveries that a decision is about."""

    positions: Sequence[int] | None
    up_to: int | None
    state: State
    key: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, form: Mapping[str, str]) -> "DecisionTarget":
        """Return the target of a form: `positions`, or `up_to`, or all of a state, key and reason."""
        with refuse_as_invalid("state"):
            state = State(form.get("state") or State.PARKED)
        scope, key, reason = form.get("scope"), form.get("key") or None, form.get("reason") or None
        if scope == "positions":
            return cls(_parse_positions(form.get("positions", "")), None, state)
        if scope == "up_to":
            return cls(None, parse_position("up_to", form.get("up_to", "")), state, key, reason)
        if scope == "all":
            return cls(None, None, state, key, reason)
        raise InvalidMessage("scope", "say which")

    async def count(self, subscription: ManagedSubscription) -> int:
        """Return how many deliveries these are."""
        if self.positions is not None:
            return len(self.positions)
        is_narrowed = any(word is not None for word in (self.up_to, self.key, self.reason))
        if not is_narrowed and self.state in _COUNTED_STATES:
            # Counted anyway, however many there are.
            return int(getattr(await subscription.info(), self.state.value))
        return await subscription.count_deliveries(
            state=self.state, key=self.key, reason=self.reason, up_to=self.up_to
        )

    async def decide(self, subscription: ManagedSubscription, decision: Decision) -> Decided:
        """Retry or skip the deliveries."""
        act = subscription.retry if decision is Decision.RETRY else subscription.skip
        if self.positions is not None:
            # Another operator may have decided since this page was drawn.
            return await act(self.positions, state=self.state)
        if self.up_to is not None:
            return await act(up_to=self.up_to, state=self.state, key=self.key, reason=self.reason)
        return await act(all=True, state=self.state, key=self.key, reason=self.reason)


_COUNTED_STATES = (State.PARKED, State.RETRYING, State.WAITING, State.UNROUTED)


@get(f"{PARKED_PATH}/plan/{{action:str}}", opt=needs(TokenRole.READ, ScopeRule.SUBSCRIPTION))
async def plan(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str], action: FromPath[str]
) -> ConsoleResponse:
    """Show the effects of a decision, for the dialog that asks."""
    try:
        count = await DecisionTarget.of(console.query).count(console.subscription(group, name))
    except Exception as error:
        return console.fragment("parts/plan.html", outlook=None, problem=expected_problem(error).detail)
    if not count:
        return console.fragment("parts/plan.html", outlook=None, problem="There is none of them: choose others.")
    return console.fragment("parts/plan.html", outlook=_preview(action, count), problem=None)


def _preview(action: str, count: int) -> ChangePreview:
    return preview_retry(count) if _decision(action) is Decision.RETRY else preview_skip(count)


def _decision(action: str) -> Decision:
    if action not in _DECISIONS:
        raise RequestRefused(NOT_FOUND, f"There is no action {action!r}.")
    return _DECISIONS[action]


@post(f"{PARKED_PATH}/{{action:str}}", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def decide(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str], action: FromPath[str]
) -> ConsoleResponse:
    """Retry or skip deliveries."""
    form = {field: values[-1] for field, values in console.form.items()}
    decision = _decision(action)

    async def work() -> str:
        deciding = DecisionTarget.of(form).decide(console.subscription(group, name), decision)
        with refuse_as_invalid("positions"):
            return _decided_in_words(decision, await console.served.shutdown.run_unless_stopping(deciding))

    back = console.url(
        "parked", group, name, state=form.get("state"), reason=form.get("reason"), key=form.get("key")
    )
    return await console.apply_change(back, work())


def _decided_in_words(decision: Decision, decided: Decided) -> str:
    verb = "tried again" if decision is Decision.RETRY else "skipped"
    words = f"{several(decided.moved, 'message is', 'messages are')} {verb}."
    if not decided.refused:
        return words
    named = [f"{position}: {why}" for position, why in list(decided.refused.items())[:MAX_NAMED_POSITIONS]]
    more = len(decided.refused) - len(named)
    left = f"\nand {more:,} more" if more else ""
    return f"{words} Not so {several(len(decided.refused), 'other')}:\n" + "\n".join(named) + left


def _parse_positions(text: str) -> list[int]:
    return [parse_position("positions", part) for part in text.split(",") if part.strip()]


HANDLERS = (list_subscriptions, list_deliveries, show_delivery, plan, decide)
