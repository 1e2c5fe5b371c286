"""Errors in words: in one line, and as Python prints them.

What fails, fails often at the same place: how that looks is remembered.
"""

import sys
import traceback
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

from milepost.dispatch.retry import one_line

MAX_REMEMBERED_TRACEBACKS = 256
"""How many places are remembered."""
MAX_TRACEBACK_DEPTH = 64
"""The most calls of one: deeper ones are rare, and long."""

FramePosition = tuple[CodeType, str, int, int]
"""Its code, the file that was compiled, and how far in it: equal code of two files is one for Python."""

_remembered_texts: dict[tuple[FramePosition, ...], str] = {}
"""Tracebacks by the calls down to where an error was raised."""


def reason_of(error: BaseException) -> str:
    """An error in one line, as it is kept with a message."""
    name = type(error).__name__
    try:
        said = one_line(str(error)).strip()
    except Exception as failed:
        # An error of the program's own that cannot say what it is: it must not end whoever asks.
        return f"{name}, whose text cannot be had: {type(failed).__name__}"
    return f"{name}: {said}" if said else name


def stack_of(thread: int, below: CodeType) -> TracebackType | None:
    """Return where a thread is just now, below a function of ours, as the traceback of an error raised there."""
    frame: FrameType | None = sys._current_frames().get(thread)
    found: TracebackType | None = None
    while frame is not None and frame.f_code is not below:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    # Without the function it is at something else already.
    return found if frame is not None else None


def traceback_of(error: BaseException) -> str:
    """The same as `traceback.format_exception`, which looks into source files each time."""
    raised_at = error.__traceback__
    if raised_at is None or _says_more(error):
        return "".join(traceback.format_exception(error))
    return _text_of(raised_at) + "".join(traceback.format_exception_only(error))


def _says_more(error: BaseException) -> bool:
    """Whether what Python prints depends on more than the calls and the text: other errors, or names in reach."""
    is_first = error.__cause__ is None and error.__context__ is None
    return not is_first or isinstance(error, BaseExceptionGroup | NameError | AttributeError | ImportError)


def _text_of(raised_at: TracebackType) -> str:
    place = tuple(_calls(raised_at))
    known = _remembered_texts.get(place)
    if known is not None:
        return known
    text = "".join(["Traceback (most recent call last):\n", *traceback.format_tb(raised_at)])
    if len(place) <= MAX_TRACEBACK_DEPTH:
        if len(_remembered_texts) >= MAX_REMEMBERED_TRACEBACKS:
            _remembered_texts.clear()
        _remembered_texts[place] = text
    return text


def _calls(raised_at: TracebackType | None) -> Iterator[FramePosition]:
    while raised_at is not None:
        code = raised_at.tb_frame.f_code
        yield code, code.co_filename, raised_at.tb_lasti, raised_at.tb_lineno
        raised_at = raised_at.tb_next
