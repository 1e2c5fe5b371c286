"""A pytest plugin: shortly before a test's time-out, print where each thread and task of the process waits.

The time-out ends the whole process, and the runner of the tests only says that it is gone.
"""

import asyncio
import faulthandler
import gc
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

SECONDS_BEFORE_TIMEOUT = 10

STDERR = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error of the process: pytest captures it while a test runs."""
    config.stash[STDERR] = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Print the stacks if the test, with its fixtures, is not done in time."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark and mark.args else item.config.getini("timeout"))
    timer = threading.Timer(max(seconds - SECONDS_BEFORE_TIMEOUT, 1), print_stacks, (item,))
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
        # Tests look at threads.
        timer.join()


def print_stacks(item: pytest.Item) -> None:
    """Print the stack of each thread, and of each task of each loop that runs."""
    file = item.config.stash[STDERR]
    file.write(f"\n{item.nodeid} hangs\n")
    file.flush()
    faulthandler.dump_traceback(file)
    # By their type: asking an instance for its class runs code where that is a property.
    for loop in [each for each in gc.get_objects() if issubclass(type(each), asyncio.AbstractEventLoop)]:
        if loop.is_running():
            for task in asyncio.all_tasks(loop):
                task.print_stack(file=file)
    file.flush()
