"""How the command ends: a status, and for an error one line that says what to do."""

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import typer
from psycopg import errors as postgresql

from milepost.cli.output import visible
from milepost.errors import FilterError, MilepostError, Unavailable
from milepost.log.database import NO_ADDRESS

REFUSED = 2
"""The status after an error."""
INTERRUPTED = 130
"""The status after Ctrl-C, as shells have it: 128 and the number of the signal."""
CLOSED_PIPE = 141
"""The status when nobody reads the output any more, as for a program that SIGPIPE ends."""

TRACEBACK = "MILEPOST_TRACEBACK"
"""Set in the environment, it shows where an unexpected error came from."""

# Typer uses click, or brings a copy of it, depending on its version: this is the base of its errors in both.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Refusal(Exception):
    """What a command cannot do, in words for the person who asked for it."""


@contextmanager
def refusing() -> Iterator[None]:
    """Around a call whose `ValueError` and `TypeError` are about what the person asked for."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise Refusal(str(error)) from error


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(number)


def status_of(error: BaseException) -> int:
    """The exit status for an error; what a person has to know is said."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Terminated):
        return error.status
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else REFUSED
    if isinstance(error, BrokenPipeError):
        return _forget_output()
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    say(explain(error))
    try:
        sys.stdout.flush()
    except OSError:
        _forget_output()
    return REFUSED


def flushed(status: int) -> int:
    """The status, once what was printed has gone out."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return status_of(error)
    return status


def say(text: str) -> None:
    """One line on standard error."""
    try:
        sys.stderr.write(f"milepost: {visible(text)}\n")
        sys.stderr.flush()
    except OSError:
        return


def explain(error: BaseException) -> str:
    """One line about what went wrong, with what to do about it."""
    if isinstance(error, Refusal):
        return str(error)
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, Unavailable):
        return f"{error}{_advice_on_connecting(str(error))}"
    if isinstance(error, FilterError):
        return _filter(error)
    if isinstance(error, MilepostError):
        return str(error)
    if isinstance(error, psycopg.Error):
        return _database(error)
    if isinstance(error, OSError):
        return _system(error)
    return (
        f"unexpected {type(error).__name__}: {error}; this is a fault of milepost: "
        f"set {TRACEBACK}=1 to see where it comes from, and report it"
    )


def _usage(error: Exception) -> str:
    text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is None:
        return str(text)
    if context.parent is None and ("--url" in text or "--schema" in text):
        return f"{text}; it goes after the command: milepost read --url …"
    return f"{text}; see {context.command_path} --help"


def _filter(error: FilterError) -> str:
    # Its own words have lines of their own for the place and the caret.
    problem, _excerpt, _caret, *advice = [*str(error).splitlines(), "", ""]
    return ": ".join([f"filter, at character {error.offset + 1}", problem, *filter(None, advice)])


def _advice_on_connecting(text: str) -> str:
    """What to do about a server that cannot be had, where its words say why."""
    advice = {
        "password": "check the user and the password in the address",
        "no pg_hba.conf entry": "the server does not let this user in from here",
        "does not exist": "create it, or check the address",
        "too many": "close other connections, or set MILEPOST_POOL_SIZE lower",
        "read-only": "give the address of the primary",
        "in recovery": "give the address of the primary",
    }
    if "resolve" in text and "@" in text:
        return ": an @ in a password is written %40"
    for words, what_to_do in advice.items():
        if words in text:
            return f": {what_to_do}"
    if "connect" in text or "resolve" in text:
        return ": is the server running, and is the address (--url, MILEPOST_URL, or the program's own) right?"
    return ""


def _database(error: psycopg.Error) -> str:
    if error.sqlstate is None and isinstance(error, psycopg.ProgrammingError):
        return NO_ADDRESS
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        reason = str(error).strip().partition("\n")[0]
        return f"PostgreSQL: {reason}{_advice_on_connecting(reason)}"
    words = [error.diag.message_primary or str(error).partition("\n")[0], error.diag.message_detail]
    text = f"PostgreSQL: {': '.join(word for word in words if word)}"
    if isinstance(error, postgresql.InsufficientPrivilege):
        return (
            f"{text}: grant this user one of the roles that `milepost schema roles` makes, or have the owner run "
            "`milepost schema migrate`"
        )
    if isinstance(error, postgresql.UndefinedTable | postgresql.InvalidSchemaName | postgresql.UndefinedFunction):
        return f"{text}: run `milepost schema migrate`, or check --schema"
    return text


def _system(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    if error.errno == errno.ENOSPC:
        return f"the output cannot be written: {reason}"
    return reason


def _forget_output() -> int:
    """Nobody reads standard output any more; what is still in its buffer must not fail again at the exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        return CLOSED_PIPE
    return CLOSED_PIPE
