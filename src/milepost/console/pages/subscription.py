"""One subscription: how it stands, what it is, and what people do to it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from milepost.console.admission import needs
from milepost.console.answer import Answer, elsewhere
from milepost.console.definition import definition_of
from milepost.console.history import handling
from milepost.console.planning import Outlook, of_delete, of_move, of_pause, of_replay, of_resume, place_in
from milepost.console.settings import FIELDS, changes_of, new_of
from milepost.console.snapshot import Snapshot
from milepost.console.visit import Visit, problem_of
from milepost.console.words import several
from milepost.engine.managed import ManagedSubscription
from milepost.engine.start import Start
from milepost.errors import InvalidMessage
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.limits import LONGEST_WAIT
from milepost.server.problems import INTERNAL, NOT_FOUND, Refused
from milepost.server.wire.values import checked

PATH = "/subscriptions"
ONE = f"{PATH}/{{group:str}}/{{name:str}}"


def managed(visit: Visit, group: str, name: str) -> ManagedSubscription:
    """The subscription that a path names."""
    return visit.mp.manage(f"{group}/{name}")


# Looking


@get(PATH, opt=needs(Role.READ, Within.ANY_SCOPE))
async def all_of_them(visit: NamedDependency[Visit]) -> Answer:
    """They are on the overview."""
    return elsewhere(visit.url())


@get(ONE, opt=needs(Role.READ, Within.SUBSCRIPTION))
async def show(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """How one stands."""
    subscription = managed(visit, group, name)
    history = visit.live_pages.watch.history

    async def load(snapshot: Snapshot) -> Mapping[str, Any]:
        # While the page is open, it may come to select more than its reader may see.
        await visit.reach.check_subscription(group, name)
        info = snapshot.by_address.get(f"{group}/{name}") or await subscription.info()
        is_created = info.settings is not None
        definition = await definition_of(visit.mp, info.group, info.name)
        visit.reach.check_shown(info.settings, None if definition is None else definition.selects)
        points = history.of(f"{group}/{name}")
        return {
            "info": info,
            "definition": definition,
            "statistics": await subscription.statistics() if is_created else None,
            "lags": [(point.at, point.lag) for point in points],
            "rates": [(point.at, point.rate) for point in points],
            "handling": handling(points),
            "span": points[-1].at - points[0].at if points else 0,
            "fields": FIELDS,
        }

    return await visit.live("subscription.html", load)


# Saying what would happen


@get(f"{ONE}/plan/{{action:str}}", opt=needs(Role.READ, Within.SUBSCRIPTION))
async def plan(
    visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str], action: FromPath[str]
) -> Answer:
    """What an action would do, for the dialog that asks; nothing is done."""
    look = _OUTLOOKS.get(action)
    if look is None:
        raise Refused(NOT_FOUND, f"There is no action {action!r}.")
    try:
        with checked("place"):
            outlook = await look(managed(visit, group, name), visit.query)
    except Exception as error:
        problem = problem_of(error)
        if problem.status == INTERNAL.status:
            raise
        return visit.fragment("parts/plan.html", outlook=None, problem=problem.detail)
    return visit.fragment("parts/plan.html", outlook=outlook, problem=None)


async def _move_outlook(subscription: ManagedSubscription, form: Mapping[str, str]) -> Outlook:
    return of_move(await subscription.plan_move(_place(form, "to")))


async def _replay_outlook(subscription: ManagedSubscription, form: Mapping[str, str]) -> Outlook:
    return of_replay(await subscription.plan_replay(_place(form, "start"), _end(form)))


async def _pause_outlook(subscription: ManagedSubscription, form: Mapping[str, str]) -> Outlook:
    return of_pause(await subscription.info())


async def _resume_outlook(subscription: ManagedSubscription, form: Mapping[str, str]) -> Outlook:
    return of_resume(await subscription.info())


async def _delete_outlook(subscription: ManagedSubscription, form: Mapping[str, str]) -> Outlook:
    return of_delete(await subscription.info())


_OUTLOOKS: Mapping[str, Callable[[ManagedSubscription, Mapping[str, str]], Awaitable[Outlook]]] = {
    "move": _move_outlook,
    "replay": _replay_outlook,
    "pause": _pause_outlook,
    "resume": _resume_outlook,
    "delete": _delete_outlook,
}


def _place(form: Mapping[str, str], name: str) -> Start:
    place = place_in(form, name)
    if place is None:
        raise InvalidMessage(name, "say where")
    return place


def _end(form: Mapping[str, str]) -> Any:
    return place_in(form, "end")


# Doing


def _waiting(visit: Visit) -> dict[str, Any]:
    """How long to wait for what is open, and what becomes of it then."""
    return {"timeout": LONGEST_WAIT, "force": visit.sent("force") == "yes"}


def _last(form: Mapping[str, Any]) -> dict[str, str]:
    return {name: values[-1] for name, values in form.items()}


@post(f"{ONE}/pause", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def pause(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """Nothing of it runs until it is resumed."""

    async def work() -> str:
        await visit.served.stopping.unless_begun(managed(visit, group, name).pause(**_waiting(visit)))
        return f"{group}/{name} is paused."

    return await visit.attempt(visit.url("subscriptions", group, name), work())


@post(f"{ONE}/resume", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def resume(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """It goes on where it was."""

    async def work() -> str:
        await managed(visit, group, name).resume()
        return f"{group}/{name} goes on."

    return await visit.attempt(visit.url("subscriptions", group, name), work())


@post(f"{ONE}/move", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def move(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """Goes on elsewhere."""

    async def work() -> str:
        to = _place(_last(visit.form), "to")
        moving = managed(visit, group, name).move(to, **_waiting(visit))
        forgotten = await visit.served.stopping.unless_begun(moving)
        return f"{group}/{name} was moved; {several(forgotten, 'delivery was', 'deliveries were')} forgotten."

    return await visit.attempt(visit.url("subscriptions", group, name), work())


@post(f"{ONE}/replay", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def replay(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """Repeats what was handled."""

    async def work() -> str:
        form = _last(visit.form)
        with checked("end"):
            replaying = managed(visit, group, name).replay(_place(form, "start"), _end(form), **_waiting(visit))
            again = await visit.served.stopping.unless_begun(replaying)
        return f"{group}/{name}: {several(again, 'position is', 'positions are')} being repeated."

    return await visit.attempt(visit.url("subscriptions", group, name), work())


@post(f"{ONE}/settings", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def change(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """Other settings of one that was created, or another limit of one that a program declares."""

    async def work() -> str:
        subscription = managed(visit, group, name)
        settings = (await subscription.info()).settings
        if settings is None:
            return await _limit(visit, subscription)
        changes = changes_of(visit.form, settings)
        if not changes:
            return "Nothing was changed."
        await visit.reach.check_change(group, name, changes)
        with checked("settings"):
            await subscription.update(**changes)
        return f"{group}/{name}: {', '.join(sorted(changes))} changed, without dropping a consumer."

    return await visit.attempt(visit.url("subscriptions", group, name), work())


async def _limit(visit: Visit, subscription: ManagedSubscription) -> str:
    typed = visit.sent("concurrency").strip()
    if typed and not (typed.isascii() and typed.isdigit()):
        raise InvalidMessage("concurrency", f"a number is wanted, not {typed!r}")
    with checked("concurrency"):
        await subscription.update(concurrency=int(typed) if typed else None)
    return f"At most {typed} at once in a process." if typed else "As many at once as its program says."


@post(f"{ONE}/delete", status_code=200, opt=needs(Role.OPERATE, Within.SUBSCRIPTION))
async def delete(visit: NamedDependency[Visit], group: FromPath[str], name: FromPath[str]) -> Answer:
    """Forgets it."""

    async def work() -> str:
        deleting = managed(visit, group, name).delete(**_waiting(visit))
        await visit.served.stopping.unless_begun(deleting)
        return f"{group}/{name} is deleted."

    return await visit.attempt(visit.url(), work(), back=visit.url("subscriptions", group, name))


@post(PATH, status_code=200, opt=needs(Role.OPERATE, Within.ITSELF))
async def create(visit: NamedDependency[Visit]) -> Answer:
    """Creates one for consumers, in the group of this server."""
    name = visit.sent("name").strip()
    group = visit.mp.settings["group"].value

    async def work() -> str:
        wanted, options = new_of(visit.form)
        await visit.reach.check_creation(group, wanted, options)
        with checked("subscription"):
            await visit.mp.create_subscription(wanted, if_exists="error", **options)
        if options.get("paused"):
            return f"{group}/{wanted} is created, paused: it waits until you resume it."
        return f"{group}/{wanted} is created: consumers may come."

    return await visit.attempt(visit.url("subscriptions", group, name), work(), back=visit.url())


HANDLERS = (all_of_them, show, plan, pause, resume, move, replay, change, delete, create)
