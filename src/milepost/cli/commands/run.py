"""`milepost run`: the workers of a program."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Annotated, TypeAlias

import typer

from milepost.app import Milepost
from milepost.cli.exit_status import exit_status_of
from milepost.cli.options import Program, check_seconds, declared_subscriptions, load_program
from milepost.cli.run.health import HealthServer, ListenAddress
from milepost.cli.run.reporter import HealthReporter
from milepost.cli.run.reports import ProcessMeasurement, ProcessReport, ProcessReports, ReportPipeWriter
from milepost.cli.run.supervisor import ProcessSupervisor, terminate_with_parent
from milepost.engine.declare.subscription import Subscription
from milepost.engine.handlers.host import DEFINITIONS_LOGGER

SendReport: TypeAlias = Callable[[ProcessReport | ProcessMeasurement], None]

FATAL_STATUS = 1
"""The status after an error that ended a program which had begun."""


def run(
    program: Program,
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
    check_seconds("--grace", grace)
    mp = load_program(program)
    lines = _describe_subscriptions(program, mp)
    logging.getLogger(DEFINITIONS_LOGGER).setLevel(logging.INFO)
    with ExitStack() as stack:
        reports = None
        if health is not None:
            reports = ProcessReports(processes, mp.settings["group"].value)
            server = stack.enter_context(HealthServer(ListenAddress.of(health), reports))
            if not quiet:
                _print_lines([f"health: http://{server.address}/healthz, /readyz and /metrics"])
        if processes == 1:
            work = _run_here(mp, grace, _report_sender(reports, report_to), [] if quiet else lines, lives_with)
        else:
            work = _run_processes(program, processes, grace, reports, quiet=quiet)
        if not _run_until_signal(work):
            raise typer.Exit(FATAL_STATUS)


def _describe_subscriptions(program: str, mp: Milepost) -> list[str]:
    """Return a line about each subscription; refuse one that cannot run."""
    most = mp.settings["concurrency"].value
    return [
        f"{each.name}: lanes {each.lanes}, concurrency {_concurrency_of(each, most)}"
        for each in declared_subscriptions(program, mp)
    ]


def _concurrency_of(subscription: Subscription, most: int) -> int:
    """Return how many calls run at once in a process: with transactions, one for each lane."""
    wanted = min(subscription.declaration.concurrency or most, most)
    return min(wanted, subscription.lanes) if subscription.takes_transaction else wanted


def _report_sender(reports: ProcessReports | None, report_to: int | None) -> SendReport | None:
    """Return the function that takes this process's reports; None if they are not wanted."""
    if report_to is not None:
        return ReportPipeWriter(report_to).write
    if reports is None:
        return None
    reports.add_process(os.getpid())
    return partial(reports.record, os.getpid())


async def _run_here(
    mp: Milepost, grace: float, send: SendReport | None, lines: Sequence[str], lives_with: int | None
) -> bool:
    with nullcontext() if lives_with is None else terminate_with_parent(lives_with):
        async with HealthReporter(mp, send).reporting() if send else nullcontext(), mp:
            _print_lines(lines)
            await mp.program().run(grace, insist=lives_with is None)
    return True


async def _run_processes(
    program: str, processes: int, grace: float, reports: ProcessReports | None, *, quiet: bool
) -> bool:
    command = [sys.executable, "-m", "milepost.cli", "run", program, "--grace", str(grace)]
    silent = [*command, "--quiet"]
    first = silent if quiet else command
    return await ProcessSupervisor([first, *[silent] * (processes - 1)], reports).run()


def _print_lines(lines: Sequence[str]) -> None:
    """Print lines that are seen at once, also through a pipe."""
    for line in lines:
        typer.echo(line)
    sys.stdout.flush()


def _run_until_signal(work: Coroutine[None, None, bool]) -> bool:
    """Run until a signal. Return True if it ended without an error."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        # The signal came before there was anything to end.
        return True
    except Exception as error:
        exit_status_of(error)
        return False
