"""Tracebacks that are remembered are those that Python prints."""

import traceback
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from milepost.engine import tracebacks
from milepost.engine.tracebacks import reason_of, traceback_of


def plain() -> None:
    raise ValueError("plain")


def deeper() -> None:
    plain()


_by_turns = cycle([True, False])


def at_two_places() -> None:
    if next(_by_turns):
        raise ValueError("here")
    raise ValueError("there")


def caused() -> None:
    try:
        plain()
    except ValueError as error:
        raise RuntimeError("caused") from error


def while_another() -> None:
    try:
        plain()
    except ValueError:
        raise RuntimeError("while another")  # noqa: B904 - that is what is tried


def instead_of_another() -> None:
    try:
        plain()
    except ValueError:
        raise RuntimeError("instead") from None


def several() -> None:
    raise ExceptionGroup("several", [ValueError("one"), ValueError("two")])


def noted() -> None:
    error = ValueError("noted\nin two lines")
    error.add_note("a note")
    raise error


def recursive(depth: int = 200) -> None:
    if depth:
        recursive(depth - 1)
    plain()


def unreadable() -> None:
    exec(compile("raise ValueError('of no file')", "<nowhere>", "exec"), {})


def wrong_syntax() -> None:
    compile("1 +", "<typed>", "exec")


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


def caused_by_a_falsy_one() -> None:
    raise RuntimeError("caused") from Falsy("as a cause")


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("detail")


def mute() -> None:
    raise Mute


def misspelt_name() -> None:
    pytset.fail("did you mean")  # type: ignore[name-defined]  # noqa: F821 - that is what is tried


def misspelt_attribute() -> None:
    pytest.fial("did you mean")  # type: ignore[attr-defined]


def of(call: Callable[[], None]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    "call",
    [
        plain,
        deeper,
        at_two_places,
        caused,
        while_another,
        instead_of_another,
        several,
        noted,
        recursive,
        unreadable,
        wrong_syntax,
        caused_by_a_falsy_one,
        mute,
        misspelt_name,
        misspelt_attribute,
    ],
)
def test_the_same_as_python_prints(call: Callable[[], None]) -> None:
    for _ in range(4):
        error = of(call)
        assert traceback_of(error) == "".join(traceback.format_exception(error))


def test_one_that_was_never_raised() -> None:
    assert traceback_of(ValueError("quiet")) == "ValueError: quiet\n"


def test_equal_code_of_two_files(tmp_path: Path) -> None:
    """As templates have it that are compiled to code; Python does not tell them apart."""
    for name in ("receipt", "reminder"):
        path = tmp_path / f"{name}.html"
        path.write_text(f"the first line of a {name}")
        error = of(partial(exec, compile("raise ValueError('no price')", path, "exec")))
        told = traceback_of(error)
        assert told == "".join(traceback.format_exception(error))
        assert f"{name}.html" in told
        assert f"the first line of a {name}" in told


def test_the_reason_is_one_line() -> None:
    assert reason_of(ValueError("no price")) == "ValueError: no price"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(Mute()) == "Mute, whose text cannot be had: KeyError"


def test_what_is_said_is_not_remembered() -> None:
    def say(what: str) -> None:
        raise ValueError(what)

    told = [traceback_of(of(lambda what=what: say(what))) for what in ("one", "two")]  # type: ignore[misc]
    assert [text.splitlines()[-1] for text in told] == ["ValueError: one", "ValueError: two"]


def test_a_place_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_remembered_texts", {})
    of_first = traceback_of(of(deeper))
    monkeypatch.setattr(traceback, "format_tb", lambda _: pytest.fail("looked up again"))
    assert traceback_of(of(deeper)) == of_first


def test_not_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_remembered_texts", {})
    monkeypatch.setattr(tracebacks, "MAX_REMEMBERED_TRACEBACKS", 3)
    for number in range(20):
        names: dict[str, Callable[[], None]] = {}
        exec(f"def fail():\n    raise ValueError({number})", names)
        traceback_of(of(names["fail"]))
        assert 0 < len(tracebacks._remembered_texts) <= 3


def test_what_is_deep_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_remembered_texts", {})
    traceback_of(of(recursive))
    assert not tracebacks._remembered_texts
