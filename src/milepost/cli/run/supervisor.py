"""Supervise the processes of `milepost run --processes`: start each again when it ends, end them with this one."""

import asyncio
import os
import signal
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial

from milepost.cli.exit_status import print_note
from milepost.cli.run.reports import ProcessReports, ReportPipeReader


class Lifeline:
    """The supervisor's end of a pipe, which the system closes whatever way the supervisor ends."""

    def __init__(self) -> None:
        inherited, self._descriptor = os.pipe()
        self.inherited = inherited
        """The descriptor that the started process inherits."""

    def close_inherited(self) -> None:
        """Close the inherited end here."""
        os.close(self.inherited)

    def close(self) -> None:
        """Close the supervisor's end, after the other process has ended."""
        os.close(self._descriptor)


@contextmanager
def terminate_with_parent(descriptor: int) -> Iterator[None]:
    """Within the block, send this process SIGTERM when the other end of a lifeline is gone."""
    loop = asyncio.get_running_loop()
    os.set_inheritable(descriptor, False)

    def gone() -> None:
        loop.remove_reader(descriptor)
        os.kill(os.getpid(), signal.SIGTERM)
        print_note("the process that started this one is gone: it ends")

    loop.add_reader(descriptor, gone)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


FIRST_PAUSE_SECONDS = 1.0
"""Seconds before a process that ended is started again; each reading pause is twice as long."""
MAX_PAUSE_SECONDS = 30.0
"""The longest pause; a process that ran for longer than that begins with the first one again."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProcessSupervisor:
    """Keeps a process for each command running until a signal comes.

    Each is told by an option, `--lives-with`, by what it sees that this process is gone; and with `reports` by
    another, `--report-to`, where it is to say how it is.
    """

    def __init__(self, commands: Sequence[Sequence[str]], reports: ProcessReports | None = None) -> None:
        self._commands = commands
        self._reports = reports
        self._running: set[Process] = set()
        self._stop: signal.Signals | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> bool:
        """Keep the processes running until a signal, which is passed on. A second signal kills them.

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
            _send_signal(process, send)

    async def _keep(self, command: Sequence[str]) -> bool:
        """Run one process after the other. Return True if the last one ended well."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            begun = loop.time()
            status = await self._run_one(command)
            if self._stop is not None:
                # The signal may have come before the process was ready for it.
                return status in (0, -self._stop, 128 + self._stop)
            if loop.time() - begun > MAX_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            print_note(f"a process ended {_status_in_words(status)}: the next one starts in {pause:g} s")
            if await self._stops_within(pause):
                return True
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _run_one(self, command: Sequence[str]) -> int:
        with closing(Lifeline()) as lifeline:
            if self._reports is None:
                return await self._run_to_its_end(await _start_process(command, {"--lives-with": lifeline}))
            return await self._run_reporting(command, lifeline, self._reports)

    async def _run_reporting(self, command: Sequence[str], lifeline: Lifeline, reports: ProcessReports) -> int:
        report_pipe = ReportPipeReader()
        process = await _start_process(command, {"--lives-with": lifeline, "--report-to": report_pipe})
        reports.add_process(process.pid)
        reading = asyncio.create_task(report_pipe.read(partial(reports.record, process.pid)))
        try:
            return await self._run_to_its_end(process)
        finally:
            reports.remove_process(process.pid)
            reading.cancel()

    async def _run_to_its_end(self, process: Process) -> int:
        self._running.add(process)
        try:
            if self._stop is not None:
                _send_signal(process, self._stop)
            return await process.wait()
        finally:
            self._running.discard(process)
            if process.returncode is None:
                _send_signal(process, signal.SIGKILL)

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        return False


async def _start_process(command: Sequence[str], pipes: Mapping[str, Lifeline | ReportPipeReader]) -> Process:
    """Start a process that inherits the other ends of these pipes, each named by an option."""
    named = [word for option, pipe in pipes.items() for word in (option, str(pipe.inherited))]
    inherited = [pipe.inherited for pipe in pipes.values()]
    # In a group of its own: Ctrl-C in a terminal reaches it once, from here.
    process = await create_subprocess_exec(*command, *named, process_group=0, pass_fds=inherited)
    for pipe in pipes.values():
        pipe.close_inherited()
    return process


def _send_signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _status_in_words(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
