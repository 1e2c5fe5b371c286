"""A handler, ready to be called: what each call needs is worked out once."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from milepost.dispatch.reasons import one_line
from milepost.engine.context import Context
from milepost.engine.described import Function
from milepost.engine.instrument import Instrument, in_a_thread, on_the_loop
from milepost.engine.outcomes import FATAL
from milepost.engine.providers import Provider, Providers, Values, arguments
from milepost.engine.provision import LOOP, Provision
from milepost.engine.signature import Asked, Signature, Source
from milepost.engine.transaction import Transaction
from milepost.errors import InvalidMessage
from milepost.log.codec import NewerVersion
from milepost.log.message import Message

AnyMessage: TypeAlias = Message[Any]
Get: TypeAlias = Callable[[Any, Context | None, Transaction | None], Any]
Prepare: TypeAlias = Callable[[Any, Context | None, Transaction | None], tuple[Any, ...]]


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
        asked = [_settled(each, providers) for each in signature.asked]
        self._refuse_contradictions(signature, needed)
        sources = {each.source for each in (*asked, *_all_asked(needed))}
        self.takes_transaction = Source.TRANSACTION in sources
        """Whether it, or a provider that it needs, writes through a `Transaction`."""
        self.takes_context = Source.CONTEXT in sources
        """Whether it, or a provider that it needs, asks for a `Context`; `prepare` can do without otherwise."""
        self.prepare: Prepare
        self.call: Function
        if needed:
            self.prepare, self.call = self._provided(signature, asked, needed)
        else:
            self.prepare, self.call = self._direct(signature, asked)

    def __repr__(self) -> str:
        return f"Handler({self.name}, {self.location})"

    def seen_by(self, instrument: Instrument) -> None:
        """Lets an instrument see its calls from now on. Who does not ask for this pays nothing for it."""
        prepare, batch = self.prepare, self.batch

        def prepare_seen(subject: Any, context: Context | None, tx: Transaction | None) -> tuple[Any, ...]:
            return subject if batch else (subject,), context, prepare(subject, context, tx)

        seen = on_the_loop if self.is_async else in_a_thread
        self.prepare, self.call = prepare_seen, seen(self.call, instrument, batch=batch)
        self.takes_context = True

    def _direct(self, signature: Signature, asked: list[Asked]) -> tuple[Prepare, Function]:
        positional = [each for each in asked if not each.parameter.keyword_only]
        while positional and positional[-1].source is Source.DEFAULT:
            positional.pop()
        named = [each for each in asked if each.parameter.keyword_only and each.source is not Source.DEFAULT]
        function = signature.described.function
        if self.is_async and not _is_coroutine_function(function):
            function = _awaiting(function)
        if named:
            function = _by_name(function, len(positional), tuple(each.parameter.name for each in named))
        if not self.is_async:
            function = _refusing_awaitables(function, str(signature.described))
        return _preparing([*positional, *named]), function

    def _provided(
        self, signature: Signature, asked: list[Asked], needed: list[Provider]
    ) -> tuple[Prepare, Function]:
        known = {each.source: _getter(each) for each in asked if each.source in _KNOWN}
        for each in _all_asked(needed):
            if each.source in _KNOWN:
                known.setdefault(each.source, _getter(each))
        on_loop = not self.is_async and any(provider.is_async for provider in needed)

        def prepare(subject: Any, context: Context | None, transaction: Transaction | None) -> tuple[Values]:
            values: Values = {source: get(subject, context, transaction) for source, get in known.items()}
            if on_loop:
                values[LOOP] = asyncio.get_running_loop()
            return (values,)

        function = signature.described.function
        if not self.is_async:
            function = _refusing_awaitables(function, str(signature.described))

        def call(values: Values) -> Any:
            positional, named = arguments(asked, values)
            return function(*positional, **named)

        provision = Provision(needed, call)
        return prepare, provision.run if self.is_async else provision.run_plain

    def _refuse_contradictions(self, signature: Signature, needed: list[Provider]) -> None:
        for provider in needed:
            for each in provider.asked:
                if each.source is Source.MESSAGE and self.batch:
                    raise TypeError(
                        f"{signature.described}: it takes a batch, and {provider.described} asks for one Message"
                    )
                if each.source is Source.TRANSACTION and not self.is_async:
                    raise TypeError(
                        f"{signature.described}: {provider.described} asks for a Transaction, which is used with "
                        "await: write `async def` for the handler"
                    )


_KNOWN = (Source.MESSAGE, Source.PAYLOAD, Source.CONTEXT, Source.TRANSACTION)


def _settled(each: Asked, providers: Providers) -> Asked:
    """With the parameter's default, where nobody provides what it asks for."""
    if each.source is Source.PROVIDER and each.hint not in providers:
        return replace(each, source=Source.DEFAULT)
    return each


def _all_asked(providers: Sequence[Provider]) -> list[Asked]:
    return [each for provider in providers for each in provider.asked]


def _decoded(message: AnyMessage) -> Any:
    try:
        return message.data
    except (NewerVersion, *FATAL):
        raise
    except BaseException as error:
        raise Undecodable(message, error) from error


def _getter(each: Asked) -> Get:
    """Finds the value of a parameter."""
    match each.source:
        case Source.PAYLOAD if each.batch:
            return lambda messages, context, transaction: list(map(_decoded, messages))
        case Source.PAYLOAD:
            return lambda message, context, transaction: _decoded(message)
        case Source.MESSAGE if each.batch:
            return _messages_decoded if each.classes else lambda messages, context, transaction: list(messages)
        case Source.MESSAGE:
            return _message_decoded if each.classes else lambda message, context, transaction: message
        case Source.CONTEXT:
            return lambda message, context, transaction: context
        case Source.TRANSACTION:
            return lambda message, context, transaction: transaction
        case _:
            default = each.parameter.default
            return lambda message, context, transaction: default


def _message_decoded(message: AnyMessage, context: Context | None, transaction: Transaction | None) -> AnyMessage:
    _decoded(message)
    return message


def _messages_decoded(
    messages: Sequence[AnyMessage], context: Context | None, transaction: Transaction | None
) -> list[AnyMessage]:
    for message in messages:
        _decoded(message)
    return list(messages)


def _payload_alone(message: AnyMessage, context: Context | None, transaction: Transaction | None) -> tuple[Any]:
    try:
        return (message.data,)
    except (NewerVersion, *FATAL):
        raise
    except BaseException as error:
        raise Undecodable(message, error) from error


def _preparing(asked: list[Asked]) -> Prepare:
    """All arguments of a call; without a loop for the few parameters that most handlers have."""
    if [(each.source, each.batch) for each in asked] == [(Source.PAYLOAD, False)]:
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


def _by_name(function: Function, positional: int, names: tuple[str, ...]) -> Function:
    def call(*values: Any) -> Any:
        return function(*values[:positional], **dict(zip(names, values[positional:], strict=True)))

    return call


def _is_coroutine_function(function: Function) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def _awaiting(function: Function) -> Function:
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
