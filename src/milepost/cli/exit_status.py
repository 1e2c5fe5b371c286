"""Exit statuses, and for each error one line that says what to do."""

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from milepost.cli.output import visible
from milepost.errors import FilterError, MilepostError, Unavailable
from milepost.postgres.describe import DatabaseError, database_error

ERROR_STATUS = 2
"""The status after an error."""
INTERRUPTED_STATUS = 130
"""The status after Ctrl-C, as shells have it: 128 and the number of the signal."""
CLOSED_PIPE_STATUS = 141
"""The status when the reader of the output is gone, as for a program that SIGPIPE ends."""

TRACEBACK_VARIABLE = "MILEPOST_TRACEBACK"
"""Set in the environment, it shows where an unexpected error came from."""

# Typer uses click, or brings a copy of it, depending on its version: this is the base of its errors in both.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class CommandError(Exception):
    """A command cannot do what was asked. The message is for the person who asked."""


@contextmanager
def argument_errors() -> Iterator[None]:
    """Turn `ValueError` and `TypeError` of the block, which are about what was asked for, into `CommandError`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise CommandError(str(error)) from error


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(number)


def exit_status_of(error: BaseException) -> int:
    """Return the exit status for an error, after printing what a person has to know."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Terminated):
        return error.status
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED_STATUS
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else ERROR_STATUS
    if isinstance(error, BrokenPipeError):
        return _discard_output()
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    print_note(describe_error(error))
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    return ERROR_STATUS


def flush_output(status: int) -> int:
    """Flush standard output and return the status; another one if the output cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return exit_status_of(error)
    return status


def print_note(text: str) -> None:
    """Print one line to standard error."""
    try:
        sys.stderr.write(f"milepost: {visible(text)}\n")
        sys.stderr.flush()
    except OSError:
        return


def is_refusal(error: BaseException) -> bool:
    """Return True if Milepost or the database refused what was asked for; False if a program is at fault."""
    return isinstance(error, MilepostError) or database_error(error) is not None


def describe_error(error: BaseException) -> str:
    """Return one line about what went wrong, with what to do about it."""
    if isinstance(error, CommandError):
        return str(error)
    if isinstance(error, UsageError):
        return _describe_usage_error(error)
    if isinstance(error, Unavailable):
        return f"{error}{_connection_advice(str(error))}"
    if isinstance(error, FilterError):
        return _describe_filter_error(error)
    if isinstance(error, MilepostError):
        return str(error)
    if (from_database := database_error(error)) is not None:
        return _describe_database_error(from_database)
    if isinstance(error, OSError):
        return _describe_os_error(error)
    return (
        f"unexpected {type(error).__name__}: {error}; this is a fault of milepost: "
        f"set {TRACEBACK_VARIABLE}=1 to see where it comes from, and report it"
    )


def _describe_usage_error(error: Exception) -> str:
    text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is None:
        return str(text)
    if context.parent is None and ("--url" in text or "--schema" in text):
        return f"{text}; it goes after the command: milepost read --url …"
    return f"{text}; see {context.command_path} --help"


def _describe_filter_error(error: FilterError) -> str:
    # Its own words have lines of their own for the place and the caret.
    problem, _excerpt, _caret, *advice = [*str(error).splitlines(), "", ""]
    return ": ".join([f"filter, at character {error.offset + 1}", problem, *filter(None, advice)])


def _connection_advice(text: str) -> str:
    """Return what to do about a server that cannot be reached, as far as its error says why."""
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


def _describe_database_error(error: DatabaseError) -> str:
    text = f"PostgreSQL: {': '.join(filter(None, [error.text, error.detail]))}"
    match error.kind:
        case "address":
            return error.text
        case "connection":
            return f"{text}{_connection_advice(error.text)}"
        case "permission":
            return (
                f"{text}: grant this user one of the roles that `milepost schema roles` makes, or have the owner "
                "run `milepost schema migrate`"
            )
        case "schema":
            return f"{text}: run `milepost schema migrate`, or check --schema"
        case _:
            return text


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    if error.errno == errno.ENOSPC:
        return f"the output cannot be written: {reason}"
    return reason


def _discard_output() -> int:
    """Discard standard output, whose reader is gone: what is in its buffer must not fail again at the exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        return CLOSED_PIPE_STATUS
    return CLOSED_PIPE_STATUS
