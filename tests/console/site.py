"""A console to look at: a server in a process of its own, and what a test does to its database."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from milepost import Milepost

CHROMIUM = "/usr/bin/chromium"
SERVE = [
    sys.executable,
    "-c",
    "import sys; from milepost.cli import main; from milepost.console import watch; "
    "watch.WATCHED = watch.Pace(1, 0, 1); sys.exit(main())",
]
"""The command. On a busy machine a look takes long, and would be made less often: here it is not."""
USUAL = ("there is no token yet", "the horizon waits at position")
"""What a server says where a test wants just that."""


class Site:
    """`milepost serve` on a schema."""

    def __init__(self, url: str, schema: str, *options: str) -> None:
        self.url = url
        self.schema = schema
        self.process = subprocess.Popen(
            [*SERVE, "serve", "--port", "0", *options],
            env={**os.environ, "MILEPOST_URL": url, "MILEPOST_SCHEMA": schema},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().decode()
        assert said.startswith("serving at"), self.process.communicate()
        self.address = said.split()[-1]

    def milepost(self, **options: Any) -> Milepost:
        """One more program on the same schema."""
        return Milepost(self.url, schema=self.schema, **options)

    def path(self, *parts: str) -> str:
        """The address of a page."""
        return "/".join([f"{self.address}/console", *parts])

    def stop(self) -> str:
        """Stops the server; what it complained about."""
        self.process.send_signal(signal.SIGINT)
        _, complaints = self.process.communicate(timeout=60)
        return complaints.decode()

    def end(self) -> None:
        """Stops the server; it must have had nothing to complain about."""
        lines = [line for line in self.stop().splitlines() if not any(word in line for word in USUAL)]
        assert not lines, "\n".join(lines)


StartSite = Callable[..., Site]
