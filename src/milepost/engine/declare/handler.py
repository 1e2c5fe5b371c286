"""A handler, ready to be called, and the instruments that see its calls."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from milepost.dispatch import LaneDelivery
from milepost.dispatch.retry import one_line
from milepost.engine.declare.context import Context, Transaction
from milepost.engine.declare.outcomes import FATAL
from milepost.engine.declare.providers import (
    EVENT_LOOP,
    CallValues,
    ProvidedCall,
    Provider,
    Providers,
    call_arguments,
)
from milepost.engine.declare.signature import AskedParameter, Function, ParameterSource, Signature
from milepost.errors import InvalidMessage
from milepost.log.append import AppendInstrument, instrument_warnings
from milepost.log.codec import NewerVersion
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


def instrument_async(
    call: Function, instrument: Instrument, *, batch: bool
) -> Callable[..., Coroutine[Any, Any, None]]:
    """A coroutine function, seen by an instrument."""

    async def seen(messages: Sequence[Message[Any]], context: Context, arguments: tuple[Any, ...]) -> None:
        end = _instrument_begins(instrument, messages, context, batch=batch)
        try:
            await call(*arguments)
        except BaseException as error:
            _instrument_ends(end, error)
            raise
        _instrument_ends(end, None)

    return seen


def instrument_plain(call: Function, instrument: Instrument, *, batch: bool) -> Callable[..., None]:
    """A plain function, seen by an instrument."""

    def seen(messages: Sequence[Message[Any]], context: Context, arguments: tuple[Any, ...]) -> None:
        end = _instrument_begins(instrument, messages, context, batch=batch)
        try:
            call(*arguments)
        except BaseException as error:
            _instrument_ends(end, error)
            raise
        _instrument_ends(end, None)

    return seen


def _instrument_begins(
    instrument: Instrument, messages: Sequence[Message[Any]], context: Context, *, batch: bool
) -> CallEnd | None:
    try:
        return instrument.handling(messages, context, batch=batch)
    except Exception:
        instrument_warnings.warn("failed when a handler was about to be called", with_traceback=True)
        return None


def _instrument_ends(end: CallEnd | None, error: BaseException | None) -> None:
    if end is None:
        return
    try:
        end(error)
    except Exception:
        instrument_warnings.warn("failed when a handler had ended", with_traceback=True)


AnyMessage: TypeAlias = Message[Any]
AnyDelivery: TypeAlias = LaneDelivery[AnyMessage]
GetArgument: TypeAlias = Callable[[Any, Context | None, Transaction | None], Any]
PrepareArguments: TypeAlias = Callable[[Any, Context | None, Transaction | None], tuple[Any, ...]]


class Undecodable(Exception):
    """The payload of a message does not fit the class of its type; `__cause__` says why."""

    def __init__(self, message: AnyMessage, error: BaseException) -> None:
        self.message = message
        self.reason = one_line(
            str(error) if isinstance(error, InvalidMessage) else f"data: {message!r}: {error!r}"
        )
        super().__init__(self.reason)


def is_unreadable(error: BaseException | None, message: AnyMessage) -> bool:
    """Return True if an error says of this message, maybe one of a batch, that its payload cannot be read."""
    match error:
        case Undecodable():
            return error.message is message
        case NewerVersion():
            return error.is_of(message)
    return False


class Handler:
    """A user's function, and how to call it: `call(*prepare(subject, context, transaction))`.

    The subject is a message, for a batch a list of them. If `is_async`, `call` is a coroutine function; else it
    is called in a thread. `prepare` is called on the event loop; it raises `Undecodable` or `NewerVersion`.
    """

    def __init__(self, signature: Signature, providers: Providers) -> None:
        described = signature.described
        self.name = described.name
        self.location = described.location
        self.is_async = described.is_async
        """Whether it runs on the event loop; else it runs in a thread."""
        self.batch = signature.batch
        """Whether it takes a list of messages."""
        self.types = signature.types
        """The stored types that it takes; None: any."""
        needed = providers.plan(described, signature.asked)
        asked = [_or_default(each, providers) for each in signature.asked]
        self._refuse_contradictions(signature, needed)
        sources = {each.source for each in (*asked, *_all_asked(needed))}
        self.takes_transaction = ParameterSource.TRANSACTION in sources
        """Whether it, or a provider that it needs, writes through a `Transaction`."""
        self.takes_context = ParameterSource.CONTEXT in sources
        """Whether it, or a provider that it needs, asks for a `Context`; `prepare` can do without otherwise."""
        self.prepare: PrepareArguments
        self.call: Function
        if needed:
            self.prepare, self.call = self._provided(signature, asked, needed)
        else:
            self.prepare, self.call = self._direct(signature, asked)

    def __repr__(self) -> str:
        return f"Handler({self.name}, {self.location})"

    def attach_instrument(self, instrument: Instrument) -> None:
        """Lets an instrument see its calls from now on. Who does not ask for this pays nothing for it."""
        prepare, batch = self.prepare, self.batch

        def prepare_seen(subject: Any, context: Context | None, tx: Transaction | None) -> tuple[Any, ...]:
            return subject if batch else (subject,), context, prepare(subject, context, tx)

        seen = instrument_async if self.is_async else instrument_plain
        self.prepare, self.call = prepare_seen, seen(self.call, instrument, batch=batch)
        self.takes_context = True

    def _direct(self, signature: Signature, asked: list[AskedParameter]) -> tuple[PrepareArguments, Function]:
        positional = [each for each in asked if not each.parameter.keyword_only]
        while positional and positional[-1].source is ParameterSource.DEFAULT:
            positional.pop()
        named = [
            each for each in asked if each.parameter.keyword_only and each.source is not ParameterSource.DEFAULT
        ]
        function = signature.described.function
        if self.is_async and not _is_coroutine_function(function):
            function = _as_coroutine_function(function)
        if named:
            function = _with_named_arguments(
                function, len(positional), tuple(each.parameter.name for each in named)
            )
        if not self.is_async:
            function = _refusing_awaitables(function, str(signature.described))
        return _prepare_all([*positional, *named]), function

    def _provided(
        self, signature: Signature, asked: list[AskedParameter], needed: list[Provider]
    ) -> tuple[PrepareArguments, Function]:
        known = {each.source: _getter(each) for each in asked if each.source in _SOURCES_OF_CALL}
        for each in _all_asked(needed):
            if each.source in _SOURCES_OF_CALL:
                known.setdefault(each.source, _getter(each))
        on_loop = not self.is_async and any(provider.is_async for provider in needed)

        def prepare(subject: Any, context: Context | None, transaction: Transaction | None) -> tuple[CallValues]:
            values: CallValues = {source: get(subject, context, transaction) for source, get in known.items()}
            if on_loop:
                values[EVENT_LOOP] = asyncio.get_running_loop()
            return (values,)

        function = signature.described.function
        if not self.is_async:
            function = _refusing_awaitables(function, str(signature.described))

        def call(values: CallValues) -> Any:
            positional, named = call_arguments(asked, values)
            return function(*positional, **named)

        provision = ProvidedCall(needed, call)
        return prepare, provision.run if self.is_async else provision.run_plain

    def _refuse_contradictions(self, signature: Signature, needed: list[Provider]) -> None:
        for provider in needed:
            for each in provider.asked:
                if each.source is ParameterSource.MESSAGE and self.batch:
                    raise TypeError(
                        f"{signature.described}: it takes a batch, and {provider.described} asks for one Message"
                    )
                if each.source is ParameterSource.TRANSACTION and not self.is_async:
                    raise TypeError(
                        f"{signature.described}: {provider.described} asks for a Transaction, which is used with "
                        "await: write `async def` for the handler"
                    )


_SOURCES_OF_CALL = (
    ParameterSource.MESSAGE,
    ParameterSource.PAYLOAD,
    ParameterSource.CONTEXT,
    ParameterSource.TRANSACTION,
)


def _or_default(each: AskedParameter, providers: Providers) -> AskedParameter:
    """With the parameter's default, where nobody provides what it asks for."""
    if each.source is ParameterSource.PROVIDER and each.hint not in providers:
        return replace(each, source=ParameterSource.DEFAULT)
    return each


def _all_asked(providers: Sequence[Provider]) -> list[AskedParameter]:
    return [each for provider in providers for each in provider.asked]


def _payload_of(message: AnyMessage) -> Any:
    try:
        return message.data
    except (NewerVersion, *FATAL):
        raise
    except BaseException as error:
        raise Undecodable(message, error) from error


def _getter(each: AskedParameter) -> GetArgument:
    """Finds the value of a parameter."""
    match each.source:
        case ParameterSource.PAYLOAD if each.batch:
            return lambda messages, context, transaction: list(map(_payload_of, messages))
        case ParameterSource.PAYLOAD:
            return lambda message, context, transaction: _payload_of(message)
        case ParameterSource.MESSAGE if each.batch:
            return (
                _messages_with_payloads if each.classes else lambda messages, context, transaction: list(messages)
            )
        case ParameterSource.MESSAGE:
            return _message_with_payload if each.classes else lambda message, context, transaction: message
        case ParameterSource.CONTEXT:
            return lambda message, context, transaction: context
        case ParameterSource.TRANSACTION:
            return lambda message, context, transaction: transaction
        case _:
            default = each.parameter.default
            return lambda message, context, transaction: default


def _message_with_payload(
    message: AnyMessage, context: Context | None, transaction: Transaction | None
) -> AnyMessage:
    _payload_of(message)
    return message


def _messages_with_payloads(
    messages: Sequence[AnyMessage], context: Context | None, transaction: Transaction | None
) -> list[AnyMessage]:
    for message in messages:
        _payload_of(message)
    return list(messages)


def _payload_alone(message: AnyMessage, context: Context | None, transaction: Transaction | None) -> tuple[Any]:
    try:
        return (message.data,)
    except (NewerVersion, *FATAL):
        raise
    except BaseException as error:
        raise Undecodable(message, error) from error


def _prepare_all(asked: list[AskedParameter]) -> PrepareArguments:
    """All arguments of a call; without a loop for the few parameters that most handlers have."""
    if [(each.source, each.batch) for each in asked] == [(ParameterSource.PAYLOAD, False)]:
        return _payload_alone
    getters = list(map(_getter, asked))
    match getters:
        case []:
            return lambda subject, context, transaction: ()
        case [one]:
            return lambda subject, context, transaction: (one(subject, context, transaction),)
        case [one, two]:
            return lambda subject, context, transaction: (
                one(subject, context, transaction),
                two(subject, context, transaction),
            )
        case _:
            return lambda subject, context, transaction: tuple(
                [get(subject, context, transaction) for get in getters]
            )


def _with_named_arguments(function: Function, positional: int, names: tuple[str, ...]) -> Function:
    def call(*values: Any) -> Any:
        return function(*values[:positional], **dict(zip(names, values[positional:], strict=True)))

    return call


def _is_coroutine_function(function: Function) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def _as_coroutine_function(function: Function) -> Function:
    """A callable that gives something to await, as a coroutine function."""

    async def call(*values: Any, **named: Any) -> Any:
        return await function(*values, **named)

    return call


def _refusing_awaitables(function: Function, described: str) -> Function:
    """A plain function that gives something to await has not handled anything yet."""

    def call(*values: Any, **named: Any) -> None:
        result = function(*values, **named)
        if result is None:
            return
        if inspect.isgenerator(result) or inspect.isawaitable(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                f"{described} returned a {type(result).__name__}, which nobody runs: write `async def`"
            )

    return call
