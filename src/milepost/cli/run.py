"""`milepost run`: the workers of a program."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from math import isfinite
from types import ModuleType
from typing import Annotated, TypeAlias

import typer

from milepost.app import Milepost
from milepost.cli.address import Address
from milepost.cli.ending import TRACEBACK, Refusal, refusing, status_of
from milepost.cli.health import HealthServer
from milepost.cli.lifeline import ending_with
from milepost.cli.metrics import Measured
from milepost.cli.pipe import Mouth
from milepost.cli.processes import Processes
from milepost.cli.pulse import Pulse
from milepost.cli.reports import Report, Reports
from milepost.engine.served import DEFINITIONS
from milepost.engine.subscription import Subscription
from milepost.suggestions import suggestion

Tell: TypeAlias = Callable[[Report | Measured], None]

FATAL = 1
"""The status after an error that ended a program which had begun."""


def run(
    program: Annotated[
        str, typer.Argument(metavar="MODULE:OBJECT", help="Where the Milepost is: shop:mp is mp in shop.py.")
    ],
    processes: Annotated[int, typer.Option(metavar="N", min=1, help="How many processes share the work.")] = 1,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="How long handlers that run may take to end after a signal."),
    ] = 25,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Answer /healthz, /readyz, /metrics over HTTP: :8481 on every interface, 8481 on this machine.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not list the subscriptions.")] = False,
    report_to: Annotated[int | None, typer.Option(hidden=True)] = None,
    lives_with: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Hands messages to the handlers of a program, until Ctrl-C or SIGTERM.

    **Example:** `milepost run shop:mp --processes 4 --health :8481`

    The module is looked for in the current directory first. The database is the program's own, or MILEPOST_URL.
    With several processes, one that ends by itself is started again. The status is 0 after a signal, and 1
    after an error that ended the program.
    """
    if not isfinite(grace):
        raise Refusal(f"--grace {grace}: a number is wanted")
    mp = program_of(program)
    lines = _lines(program, mp)
    logging.getLogger(DEFINITIONS).setLevel(logging.INFO)
    with ExitStack() as stack:
        reports = None
        if health is not None:
            reports = Reports(processes, mp.settings["group"].value)
            server = stack.enter_context(HealthServer(Address.of(health), reports))
            if not quiet:
                _print([f"health: http://{server.address}/healthz, /readyz and /metrics"])
        if processes == 1:
            work = _work(mp, grace, _teller(reports, report_to), [] if quiet else lines, lives_with)
        else:
            work = _share(program, processes, grace, reports, quiet=quiet)
        if not _ends_well(work):
            raise typer.Exit(FATAL)


def program_of(text: str) -> Milepost:
    """The `Milepost` that `module:object` names."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise Refusal(f"{text!r}: a module and an object in it are wanted, such as shop:mp")
    module = _module(module_name)
    if not hasattr(module, name):
        there = [known for known, value in vars(module).items() if isinstance(value, Milepost)]
        hint = suggestion(name, there) if there else "; it has no Milepost at all"
        raise Refusal(f"module {module_name!r} has no {name!r}{hint}")
    found = getattr(module, name)
    if not isinstance(found, Milepost):
        raise Refusal(f"{text} is no Milepost, but of type {type(found).__name__}")
    return found


def _module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise Refusal(f"there is no module {error.name!r} in {here}, nor is one installed") from None
        raise Refusal(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}; "
            f"set {TRACEBACK}=1 to see where this comes from"
        ) from error


def _lines(program: str, mp: Milepost) -> list[str]:
    """A line about each subscription; refuses what cannot run."""
    with refusing():
        declared = mp.declared()
    if not declared:
        raise Refusal(
            f"{program} has no subscriptions: declare one with @mp.subscription(…) in a module it imports"
        )
    most = mp.settings["concurrency"].value
    return [f"{each.name}: lanes {each.lanes}, concurrency {_at_once(each, most)}" for each in declared]


def _at_once(subscription: Subscription, most: int) -> int:
    """How many calls run at once here: with transactions, one for each lane."""
    wanted = min(subscription.declaration.concurrency or most, most)
    return min(wanted, subscription.lanes) if subscription.takes_transaction else wanted


def _teller(reports: Reports | None, report_to: int | None) -> Tell | None:
    """Whom this process tells how it is, if anybody wants to know."""
    if report_to is not None:
        return Mouth(report_to).tell
    if reports is None:
        return None
    reports.begun(os.getpid())
    return partial(reports.heard, os.getpid())


async def _work(
    mp: Milepost, grace: float, tell: Tell | None, lines: Sequence[str], lives_with: int | None
) -> bool:
    with nullcontext() if lives_with is None else ending_with(lives_with):
        async with Pulse(mp, tell).beating() if tell else nullcontext(), mp:
            _print(lines)
            await mp._program().run(grace, insist=lives_with is None)
    return True


async def _share(program: str, processes: int, grace: float, reports: Reports | None, *, quiet: bool) -> bool:
    command = [sys.executable, "-m", "milepost.cli", "run", program, "--grace", str(grace)]
    silent = [*command, "--quiet"]
    first = silent if quiet else command
    return await Processes([first, *[silent] * (processes - 1)], reports).run()


def _print(lines: Sequence[str]) -> None:
    """What whoever started it sees at once."""
    for line in lines:
        typer.echo(line)
    sys.stdout.flush()


def _ends_well(work: Coroutine[None, None, bool]) -> bool:
    """Works until a signal; whether it ended well then."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        # The signal came before there was anything to end.
        return True
    except Exception as error:
        status_of(error)
        return False
