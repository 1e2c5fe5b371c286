"""Event loops of commands: Ctrl-C takes effect, whichever thread the system gave it to."""

import asyncio
import selectors
import signal
import sys
import threading
import time

import pytest

from cli.program import Run
from milepost.cli import signals
from support import MakeMilepost


class Interrupted(KeyboardInterrupt):
    """What the handler of a signal raises; an event loop keeps other errors of callbacks to itself."""


class OtherThread(threading.Thread):
    """A thread that is given a signal as soon as the main thread waits for sockets."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._is_over = threading.Event()

    def run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._is_over.wait(0.002):
            frame = sys._current_frames().get(main)
            if frame is not None and frame.f_code.co_filename == selectors.__file__:
                time.sleep(0.05)  # by now it is asleep; without this the test passes all the same
                signal.pthread_kill(threading.get_ident(), self._number)
                return

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self.join()

    def __enter__(self) -> None:
        self.start()


async def wait_for_ever(*ignored: object) -> None:
    await asyncio.Event().wait()


def test_a_signal_of_another_thread_wakes_the_loop() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    wakes_before = signal.set_wakeup_fd(-1)
    try:
        with OtherThread(signal.SIGUSR1), pytest.raises(Interrupted):
            signals.run_async(wait_for_ever())
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(wakes_before)
        signal.signal(signal.SIGUSR1, before)


def test_a_result_and_an_error() -> None:
    async def give(value: int) -> int:
        if not value:
            raise ValueError("nothing to give")
        return value

    assert signals.run_async(give(7)) == 7
    with pytest.raises(ValueError, match="nothing to give"):
        signals.run_async(give(0))


def test_reading_on_is_interrupted(run: Run, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_mp().sync as sync:
        sync.head()
    monkeypatch.setattr("milepost.cli.commands.read._follow", wait_for_ever)
    with OtherThread(signal.SIGINT):
        assert run("read", "--follow").status == 130
