"""A process that serves one test's schema after the other: to start one for each takes most of a test's time."""

import json
import select
import subprocess
import sys
from contextlib import suppress
from tempfile import TemporaryFile

from patience import last_lines

SERVE = """
import asyncio, json, sys
from milepost import Milepost
from milepost.server import create_app, process

running = []

async def serve(url, schema):
    with process.listen("127.0.0.1", 0) as listener:
        async with Milepost(url, schema=schema) as mp:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            running.append(process.ServerProcess(create_app(mp, access="local", advertise=address), grace=0))
            print(listener.getsockname()[1], flush=True)
            await running[-1].serve(sockets=[listener])

async def main():
    loop, task = asyncio.get_running_loop(), None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "stop":
            for server in running:
                server.should_exit = server.force_exit = True
            running.clear()
            await asyncio.wait([task])
            print("stopped", flush=True)
        else:
            task = asyncio.create_task(serve(**json.loads(line)))

asyncio.run(main())
"""
PATIENCE = 30.0
"""Seconds for an answer of the process."""


class Farm:
    """Serves one schema at a time."""

    def __init__(self) -> None:
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        command, pipe = [sys.executable, "-c", SERVE], subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)

    def serve(self, url: str, schema: str) -> str:
        """The address of a server on this schema."""
        return f"http://127.0.0.1:{int(self._asked(json.dumps({'url': url, 'schema': schema})))}"

    def stop(self) -> None:
        """Ends it; a process that does not is replaced."""
        try:
            self._asked("stop")
        except TimeoutError:
            self.end()
            self._process = self._start()

    def _asked(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(line)
        if not (answer := self._process.stdout.readline()):
            status = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(
                f"the process that serves ended with {status}: {last_lines(self._errors.read(), 60)}"
            )
        return answer

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
