"""Several processes of one command: each is started again when it ends by itself."""

import asyncio
import signal
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial

from milepost.cli.ending import say
from milepost.cli.lifeline import Lifeline
from milepost.cli.pipe import Ear
from milepost.cli.reports import Reports

FIRST_PAUSE = 1.0
"""Seconds before a process that ended is started again; each following pause is twice as long."""
LONGEST_PAUSE = 30.0
"""The longest pause; a process that ran for longer than that begins with the first one again."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Processes:
    """A process for each of these commands, kept running until a signal comes.

    Each is told by an option, `--lives-with`, by what it sees that this process is gone; and with `reports` by
    another, `--report-to`, where it is to say how it is.
    """

    def __init__(self, commands: Sequence[Sequence[str]], reports: Reports | None = None) -> None:
        self._commands = commands
        self._reports = reports
        self._running: set[Process] = set()
        self._stop: signal.Signals | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> bool:
        """Keeps them running until a signal, which is passed on; a second one kills them.

        Returns whether all of them ended well.
        """
        with self._signals():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._keep(command)) for command in self._commands]
        return all(task.result() for task in tasks)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop is None:
            # A closed terminal asks for the same: end in order.
            self._stop = signal.SIGTERM if number == signal.SIGHUP else number
            self._stopping.set()
            send = self._stop
        else:
            send = signal.SIGKILL
        for process in self._running:
            _send(process, send)

    async def _keep(self, command: Sequence[str]) -> bool:
        """Runs one process, and after it the next; whether the last one ended well."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while True:
            begun = loop.time()
            status = await self._run_one(command)
            if self._stop is not None:
                # The signal may have come before the process was ready for it.
                return status in (0, -self._stop, 128 + self._stop)
            if loop.time() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            say(f"a process ended {_how(status)}: the next one starts in {pause:g} s")
            if await self._stops_within(pause):
                return True
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _run_one(self, command: Sequence[str]) -> int:
        with closing(Lifeline()) as lifeline:
            if self._reports is None:
                return await self._run_to_its_end(await _start(command, {"--lives-with": lifeline}))
            return await self._run_reporting(command, lifeline, self._reports)

    async def _run_reporting(self, command: Sequence[str], lifeline: Lifeline, reports: Reports) -> int:
        ear = Ear()
        process = await _start(command, {"--lives-with": lifeline, "--report-to": ear})
        reports.begun(process.pid)
        following = asyncio.create_task(ear.follow(partial(reports.heard, process.pid)))
        try:
            return await self._run_to_its_end(process)
        finally:
            reports.ended(process.pid)
            following.cancel()

    async def _run_to_its_end(self, process: Process) -> int:
        self._running.add(process)
        try:
            if self._stop is not None:
                _send(process, self._stop)
            return await process.wait()
        finally:
            self._running.discard(process)
            if process.returncode is None:
                _send(process, signal.SIGKILL)

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        return False


async def _start(command: Sequence[str], pipes: Mapping[str, Lifeline | Ear]) -> Process:
    """Starts a process that has the other ends of these, each named by an option."""
    named = [word for option, pipe in pipes.items() for word in (option, str(pipe.other))]
    inherited = [pipe.other for pipe in pipes.values()]
    # In a group of its own: Ctrl-C in a terminal reaches it once, from here.
    process = await create_subprocess_exec(*command, *named, process_group=0, pass_fds=inherited)
    for pipe in pipes.values():
        pipe.begun()
    return process


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _how(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
