"""Who sees calls of handlers from their beginning to their end."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

from milepost.engine.context import Context
from milepost.engine.described import Function
from milepost.log.instrument import AppendInstrument, complaints
from milepost.log.message import Message

CallEnd: TypeAlias = Callable[[BaseException | None], None]
"""Told that a call has ended, and what the handler raised."""


class Instrument(AppendInstrument, Protocol):
    """Sees what a program does from inside: appends, and calls of handlers.

    Where `@mp.on_event` tells what has happened, this is there while it happens, in the same thread and with the
    same context variables: it can set some that the handler finds. What it raises is logged and changes nothing.
    """

    def handling(self, messages: Sequence[Message[Any]], context: Context, *, batch: bool) -> CallEnd | None:
        """A handler is about to be called; what is returned is called at its end, there and then.

        Args:
            messages: Those that it is called for; one, unless it takes a batch.
            context: What the handler may know of the call.
            batch: Whether it takes a list of messages.
        """
        ...


def on_the_loop(
    call: Function, instrument: Instrument, *, batch: bool
) -> Callable[..., Coroutine[Any, Any, None]]:
    """A coroutine function, seen by an instrument."""

    async def seen(messages: Sequence[Message[Any]], context: Context, arguments: tuple[Any, ...]) -> None:
        end = _begun(instrument, messages, context, batch=batch)
        try:
            await call(*arguments)
        except BaseException as error:
            _ended(end, error)
            raise
        _ended(end, None)

    return seen


def in_a_thread(call: Function, instrument: Instrument, *, batch: bool) -> Callable[..., None]:
    """A plain function, seen by an instrument."""

    def seen(messages: Sequence[Message[Any]], context: Context, arguments: tuple[Any, ...]) -> None:
        end = _begun(instrument, messages, context, batch=batch)
        try:
            call(*arguments)
        except BaseException as error:
            _ended(end, error)
            raise
        _ended(end, None)

    return seen


def _begun(
    instrument: Instrument, messages: Sequence[Message[Any]], context: Context, *, batch: bool
) -> CallEnd | None:
    try:
        return instrument.handling(messages, context, batch=batch)
    except Exception:
        complaints.make("failed when a handler was about to be called", with_traceback=True)
        return None


def _ended(end: CallEnd | None, error: BaseException | None) -> None:
    if end is None:
        return
    try:
        end(error)
    except Exception:
        complaints.make("failed when a handler had ended", with_traceback=True)
