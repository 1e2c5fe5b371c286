"""Providers: what is refused when they are declared, and what when the program starts."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from engine.shop import Clock, Mailer, Placed, Session, subscriptions
from milepost import NewMessage
from milepost.engine.declare.context import Context, Transaction
from milepost.log.message import Message
from support import MakeMilepost


def test_a_provider_that_is_missing_is_refused_at_the_start() -> None:
    program = subscriptions()

    @program.declare("invoices", {})
    async def handler(session: Session) -> None: ...

    program.provide(lambda_clock)
    with pytest.raises(TypeError) as refused:
        program.check()
    assert "handler (" in str(refused.value)
    assert "parameter 'session': nobody provides Session: declare @mp.provide on a function" in str(refused.value)
    assert "(provided: Clock)" in str(refused.value)


def lambda_clock() -> Clock:
    return Clock()


def test_a_provider_that_misses_another_is_refused_at_the_start_even_if_nobody_needs_it() -> None:
    program = subscriptions()

    @program.provide
    def mailer(session: Session) -> Mailer:
        return Mailer(session)

    with pytest.raises(
        TypeError, match=r"mailer \(.*test_providers.py:\d+\), parameter 'session': nobody provides S"
    ):
        program.check()


def test_a_provider_that_wants_a_value_is_refused_at_the_start() -> None:
    program = subscriptions()

    @program.provide
    def mailer(host: str) -> Mailer:
        return Mailer(Session())

    with pytest.raises(TypeError, match="parameter 'host': nobody provides str: write Message"):
        program.check()


def test_providers_that_need_each_other_are_refused_at_the_start() -> None:
    program = subscriptions()

    @program.provide
    def mailer(session: Session) -> Mailer:
        return Mailer(session)

    @program.provide
    def session(mailer: Mailer) -> Session:
        return mailer.session

    with pytest.raises(TypeError, match="providers need each other: Session needs Mailer needs Session"):
        program.check()


def test_a_provider_that_needs_itself_is_refused_at_the_start() -> None:
    program = subscriptions()

    @program.provide
    def session(session: Session) -> Session:
        return session

    with pytest.raises(TypeError, match="providers need each other: Session needs Session"):
        program.check()


def test_one_thing_has_one_provider() -> None:
    program = subscriptions()
    program.provide(lambda_clock)
    with pytest.raises(ValueError, match=r"lambda_clock .*: Clock is provided by lambda_clock \(.* already"):
        program.provide(lambda_clock)


def test_a_batch_has_no_one_message_for_a_provider() -> None:
    program = subscriptions()

    @program.provide
    def session(message: Message) -> Session:  # type: ignore[type-arg]
        return Session()

    @program.declare("invoices", {})
    async def handler(events: list[Placed], session: Session) -> None: ...

    with pytest.raises(TypeError, match="handler .*: it takes a batch, and .*session .* asks for one Message"):
        program.check()


def test_a_transaction_reaches_no_plain_handler_by_way_of_a_provider() -> None:
    program = subscriptions()

    @program.provide
    def session(tx: Transaction) -> Session:
        return Session()

    @program.declare("invoices", {})
    def handler(session: Session) -> None: ...

    with pytest.raises(TypeError, match="session .* asks for a Transaction, which is used with await"):
        program.check()


def gives(hint: Any) -> Any:
    def provider() -> Any: ...

    provider.__annotations__["return"] = hint
    return provider


def asks(hint: Any) -> Any:
    def provider(it: Any) -> Session:
        return Session()

    provider.__annotations__["it"] = hint
    return provider


def unannotated():  # type: ignore[no-untyped-def]
    return Session()


def bare_parameter(it) -> Session:  # type: ignore[no-untyped-def]
    return Session()


def yields_without_saying() -> Session:  # type: ignore[misc]
    yield Session()


async def yields_the_wrong_way() -> Iterator[Session]:  # type: ignore[misc]
    yield Session()


@contextmanager
def managed() -> Iterator[Session]:
    yield Session()


@asynccontextmanager
async def managed_async() -> AsyncIterator[Session]:
    yield Session()


@pytest.mark.parametrize(
    ("provider", "problem"),
    [
        (unannotated, "a provider is found by its return type: annotate it"),
        (gives(Any), "tells nothing"),
        (gives(None), "tells nothing"),
        (gives(object), "tells nothing"),
        (gives(Session | None), "a provider gives one type, not "),
        (gives(Context), "Context comes from Milepost itself"),
        (gives(Transaction), "Transaction comes from Milepost itself"),
        (gives(Message[Placed]), "Message comes from Milepost itself"),
        (gives(Placed), "Placed is the class of a payload"),
        (gives("NoSuchClass"), "its return type: the annotation 'NoSuchClass' cannot be resolved"),
        (yields_without_saying, r"a generator's return type is Iterator\[…\] of what it yields"),
        (yields_the_wrong_way, r"a generator's return type is AsyncIterator\[…\] of what it yields"),
        (managed, "take the decorator off"),
        (managed_async, "take the decorator off"),
        (bare_parameter, "parameter 'it': it has no annotation: write Message, Context or what is provided"),
        (asks(Placed), "parameter 'it': a provider serves handlers of many payloads: ask for Message"),
        (asks(Message[Placed]), "ask for Message"),
        (asks(Clock | None), "parameter 'it': a provider gives one type, not "),
        (Session, "Session is a class"),
        (5, "a function is wanted, not 5"),
    ],
)
def test_what_is_no_provider_is_refused_when_declared(provider: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        subscriptions().provide(provider)


def test_the_function_stays_as_it_is() -> None:
    assert subscriptions().provide(lambda_clock) is lambda_clock


def test_opening_a_program_refuses_a_parameter_that_nobody_provides(make_mp: MakeMilepost) -> None:
    mp = make_mp()

    @mp.subscription("invoices")
    async def handler(message: Message[Any], session: Session) -> None: ...

    async def append() -> None:
        async with mp:
            await mp.append("order-1", NewMessage("placed"))

    missing = "handler .*, parameter 'session': nobody provides Session"
    with pytest.raises(TypeError, match=missing):
        asyncio.run(append())
    with pytest.raises(TypeError, match=missing):
        mp.sync.append("order-1", NewMessage("placed"))

    @mp.provide
    def session() -> Session:
        return Session()

    asyncio.run(append())
    with mp.sync as sync:
        assert sync.head() == 1


async def test_opening_a_program_leaves_subscriptions_alone_that_have_no_handler_yet(
    make_mp: MakeMilepost,
) -> None:
    mp = make_mp()
    invoices = mp.subscription("invoices")
    async with mp:

        @invoices.on
        async def handler(message: Message[Any], session: Session) -> None: ...

        with pytest.raises(TypeError, match="nobody provides Session"):
            await mp.run_until_idle()
