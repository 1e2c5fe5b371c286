"""The command as tests see it: what it was told, what it printed, how it ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

import psutil

COMMAND = [sys.executable, "-c", "import sys; from milepost.cli import main; sys.exit(main())"]


@dataclass(frozen=True)
class Outcome:
    """How the command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, read as a program would."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What it printed, a JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, *words: str) -> str:
        """Asserts that it ended in one line that says these words, with status 2; returns the line."""
        assert self.status == 2, self
        assert self.err.startswith("milepost: "), self
        assert self.err.count("\n") == 1, self
        assert self.err.endswith("\n"), self
        for word in words:
            assert word in self.err, self
        return self.err

    def done(self) -> "Outcome":
        """Asserts that it ended well and had nothing to complain about."""
        assert (self.status, self.err) == (0, ""), self
        return self


class Run(Protocol):
    """Runs the command to its end."""

    def __call__(self, *words: str, stdin: bytes = b"") -> Outcome: ...


Start = Callable[..., "Program"]
Shell = Callable[[str], Outcome]


class Program:
    """The command as a process of its own."""

    def __init__(self, words: Sequence[str], options: dict[str, Any]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            **{"stdin": pipe, "stdout": pipe, "stderr": pipe, "start_new_session": True, **options},
        )

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return str(self.process.stdout.readline().decode())

    def complaint(self) -> str:
        """The next line of its standard error."""
        assert self.process.stderr is not None
        return str(self.process.stderr.readline().decode())

    def end(self, number: int | None = None, stdin: bytes | None = None) -> Outcome:
        """Sends a signal, if one is given, and waits for the end."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(stdin, timeout=120)
        return Outcome(self.process.returncode, out.decode(), err.decode())

    def kill(self) -> None:
        """Ends it in whatever state it is, and the processes that it started: they have its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid and "milepost.cli" in process.cmdline():
                    process.kill()
        self.process.communicate()

    def interrupt(self) -> Outcome:
        """Presses Ctrl-C."""
        return self.end(signal.SIGINT)
