"""The page of one subscription: its status, its definition, and the actions of an operator."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from milepost.app import Milepost
from milepost.console.charts import mean_handling_seconds
from milepost.console.forms import (
    SETTING_FIELDS,
    ChangePreview,
    preview_delete,
    preview_move,
    preview_pause,
    preview_replay,
    preview_resume,
    read_changes,
    read_new_subscription,
    read_place,
)
from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, expected_problem, redirect_to
from milepost.console.snapshot import OverviewSnapshot
from milepost.console.templating import several
from milepost.engine.declare.declaration import Start
from milepost.engine.operate.manage import ManagedSubscription
from milepost.errors import InvalidMessage
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.limits import MAX_WAIT_SECONDS
from milepost.server.problems import NOT_FOUND, RequestRefused
from milepost.wire.values import refuse_as_invalid


@dataclass(frozen=True)
class ShownDefinition:
    """The newest definition of a subscription."""

    number: int
    selects: Mapping[str, Any]
    orders: str
    program: str
    """The program that declared it, with its version."""
    since: datetime
    created: datetime
    limits: Mapping[str, Any]
    """The limits that operators set."""
    replay: int
    """Positions that a replay brings again, those that it has brought included; 0: there is none."""


async def load_definition(mp: Milepost, group: str, name: str) -> ShownDefinition | None:
    """Return the stored definition; None if there is none, or progress is in another store."""
    overview = mp.services.overview
    stored = None if overview is None else await overview.definition(group, name)
    if stored is None:
        return None
    return ShownDefinition(
        stored.number,
        msgspec.json.decode(stored.selects),
        stored.orders,
        stored.program,
        stored.since,
        stored.created,
        msgspec.json.decode(stored.limits),
        stored.replay,
    )


SUBSCRIPTIONS_PATH = "/subscriptions"
SUBSCRIPTION_PATH = f"{SUBSCRIPTIONS_PATH}/{{group:str}}/{{name:str}}"


# Looking


@get(SUBSCRIPTIONS_PATH, opt=needs(TokenRole.READ, ScopeRule.ANY_SCOPE))
async def redirect_to_overview(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Redirect to the overview, which lists the subscriptions."""
    return redirect_to(console.url())


@get(SUBSCRIPTION_PATH, opt=needs(TokenRole.READ, ScopeRule.SUBSCRIPTION))
async def show(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Show a subscription."""
    subscription = console.subscription(group, name)
    history = console.live_pages.poller.history

    async def load(snapshot: OverviewSnapshot) -> Mapping[str, Any]:
        # While the page is open, it may come to select more than its reader may see.
        await console.scope_guard.check_subscription(group, name)
        info = snapshot.by_address.get(f"{group}/{name}") or await subscription.info()
        is_created = info.settings is not None
        definition = await load_definition(console.mp, info.group, info.name)
        console.scope_guard.check_selections_shown(
            info.settings, None if definition is None else definition.selects
        )
        points = history.of(f"{group}/{name}")
        return {
            "info": info,
            "definition": definition,
            "statistics": await subscription.statistics() if is_created else None,
            "lags": [(point.at, point.lag) for point in points],
            "rates": [(point.at, point.rate) for point in points],
            "handling": mean_handling_seconds(points),
            "span": points[-1].at - points[0].at if points else 0,
            "fields": SETTING_FIELDS,
        }

    return await console.live("subscription.html", load)


# Saying what would happen


@get(f"{SUBSCRIPTION_PATH}/plan/{{action:str}}", opt=needs(TokenRole.READ, ScopeRule.SUBSCRIPTION))
async def plan(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str], action: FromPath[str]
) -> ConsoleResponse:
    """Show the effects of an action, for the dialog that asks. Nothing is changed."""
    preview = _PREVIEWS.get(action)
    if preview is None:
        raise RequestRefused(NOT_FOUND, f"There is no action {action!r}.")
    try:
        with refuse_as_invalid("place"):
            outlook = await preview(console.subscription(group, name), console.query)
    except Exception as error:
        return console.fragment("parts/plan.html", outlook=None, problem=expected_problem(error).detail)
    return console.fragment("parts/plan.html", outlook=outlook, problem=None)


async def _preview_move(subscription: ManagedSubscription, form: Mapping[str, str]) -> ChangePreview:
    return preview_move(await subscription.plan_move(_required_place(form, "to")))


async def _preview_replay(subscription: ManagedSubscription, form: Mapping[str, str]) -> ChangePreview:
    return preview_replay(await subscription.plan_replay(_required_place(form, "start"), _optional_end(form)))


async def _preview_pause(subscription: ManagedSubscription, form: Mapping[str, str]) -> ChangePreview:
    return preview_pause(await subscription.info())


async def _preview_resume(subscription: ManagedSubscription, form: Mapping[str, str]) -> ChangePreview:
    return preview_resume(await subscription.info())


async def _preview_delete(subscription: ManagedSubscription, form: Mapping[str, str]) -> ChangePreview:
    return preview_delete(await subscription.info())


_PREVIEWS: Mapping[str, Callable[[ManagedSubscription, Mapping[str, str]], Awaitable[ChangePreview]]] = {
    "move": _preview_move,
    "replay": _preview_replay,
    "pause": _preview_pause,
    "resume": _preview_resume,
    "delete": _preview_delete,
}


def _required_place(form: Mapping[str, str], name: str) -> Start:
    place = read_place(form, name)
    if place is None:
        raise InvalidMessage(name, "say where")
    return place


def _optional_end(form: Mapping[str, str]) -> Any:
    return read_place(form, "end")


# Doing


def _wait_options(console: ConsoleRequest) -> dict[str, Any]:
    """Return the options that say how long to wait for open deliveries, and what becomes of them then."""
    return {"timeout": MAX_WAIT_SECONDS, "force": console.sent("force") == "yes"}


def _last_values(form: Mapping[str, Any]) -> dict[str, str]:
    return {name: values[-1] for name, values in form.items()}


@post(f"{SUBSCRIPTION_PATH}/pause", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def pause(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Pause a subscription."""

    async def work() -> str:
        await console.served.shutdown.run_unless_stopping(
            console.subscription(group, name).pause(**_wait_options(console))
        )
        return f"{group}/{name} is paused."

    return await console.apply_change(console.url("subscriptions", group, name), work())


@post(f"{SUBSCRIPTION_PATH}/resume", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def resume(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Resume a subscription."""

    async def work() -> str:
        await console.subscription(group, name).resume()
        return f"{group}/{name} goes on."

    return await console.apply_change(console.url("subscriptions", group, name), work())


@post(f"{SUBSCRIPTION_PATH}/move", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def move(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Move a subscription to another position."""

    async def work() -> str:
        to = _required_place(_last_values(console.form), "to")
        moving = console.subscription(group, name).move(to, **_wait_options(console))
        forgotten = await console.served.shutdown.run_unless_stopping(moving)
        return f"{group}/{name} was moved; {several(forgotten, 'delivery was', 'deliveries were')} forgotten."

    return await console.apply_change(console.url("subscriptions", group, name), work())


@post(f"{SUBSCRIPTION_PATH}/replay", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def replay(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Replay what was handled."""

    async def work() -> str:
        form = _last_values(console.form)
        with refuse_as_invalid("end"):
            replaying = console.subscription(group, name).replay(
                _required_place(form, "start"), _optional_end(form), **_wait_options(console)
            )
            again = await console.served.shutdown.run_unless_stopping(replaying)
        return f"{group}/{name}: {several(again, 'position is', 'positions are')} being repeated."

    return await console.apply_change(console.url("subscriptions", group, name), work())


@post(f"{SUBSCRIPTION_PATH}/settings", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def change(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Change the settings of a subscription that was created, or the limit of one that a program declares."""

    async def work() -> str:
        subscription = console.subscription(group, name)
        settings = (await subscription.info()).settings
        if settings is None:
            return await _change_concurrency(console, subscription)
        changes = read_changes(console.form, settings)
        if not changes:
            return "Nothing was changed."
        await console.scope_guard.check_change(group, name, changes)
        with refuse_as_invalid("settings"):
            await subscription.update(**changes)
        return f"{group}/{name}: {', '.join(sorted(changes))} changed, without dropping a consumer."

    return await console.apply_change(console.url("subscriptions", group, name), work())


async def _change_concurrency(console: ConsoleRequest, subscription: ManagedSubscription) -> str:
    typed = console.sent("concurrency").strip()
    if typed and not (typed.isascii() and typed.isdigit()):
        raise InvalidMessage("concurrency", f"a number is wanted, not {typed!r}")
    with refuse_as_invalid("concurrency"):
        await subscription.update(concurrency=int(typed) if typed else None)
    return f"At most {typed} at once in a process." if typed else "As many at once as its program says."


@post(f"{SUBSCRIPTION_PATH}/delete", status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.SUBSCRIPTION))
async def delete(
    console: NamedDependency[ConsoleRequest], group: FromPath[str], name: FromPath[str]
) -> ConsoleResponse:
    """Delete a subscription."""

    async def work() -> str:
        deleting = console.subscription(group, name).delete(**_wait_options(console))
        await console.served.shutdown.run_unless_stopping(deleting)
        return f"{group}/{name} is deleted."

    return await console.apply_change(console.url(), work(), back=console.url("subscriptions", group, name))


@post(SUBSCRIPTIONS_PATH, status_code=200, opt=needs(TokenRole.OPERATE, ScopeRule.ITSELF))
async def create(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Create a subscription for consumers, in the group of this server."""
    name = console.sent("name").strip()
    group = console.mp.settings["group"].value

    async def work() -> str:
        wanted, options = read_new_subscription(console.form)
        await console.scope_guard.check_creation(group, wanted, options)
        with refuse_as_invalid("subscription"):
            await console.mp.create_subscription(wanted, if_exists="error", **options)
        if options.get("paused"):
            return f"{group}/{wanted} is created, paused: it waits until you resume it."
        return f"{group}/{wanted} is created: consumers may come."

    return await console.apply_change(console.url("subscriptions", group, name), work(), back=console.url())


HANDLERS = (redirect_to_overview, show, plan, pause, resume, move, replay, change, delete, create)
