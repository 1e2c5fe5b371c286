"""What programs give to their handlers: made for each call, shared within it, finished after it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NewType, cast

import pytest

from engine.shop import Clock, Mailer, Placed, Session, context, message, subscriptions
from milepost.engine.declare.context import Context, Transaction
from milepost.engine.declare.handler import Undecodable
from milepost.engine.declare.outcomes import Skip
from milepost.engine.declare.subscription import ProgramSubscriptions
from milepost.log.message import Message

TRANSACTION = cast(Transaction, object())


async def run(program: ProgramSubscriptions, subject: Any = None) -> Any:
    """Calls the only handler as a worker does."""
    program.check()
    ((handler,),) = (each.handlers for each in program)
    arguments = handler.prepare(subject or message(), context(), TRANSACTION)
    if handler.is_async:
        return await handler.call(*arguments)
    return await asyncio.to_thread(handler.call, *arguments)


def providers_of_every_kind(log: list[Any]) -> dict[str, Any]:
    def plain() -> Session:
        log.append("made")
        return Session()

    async def coroutine() -> Session:
        await asyncio.sleep(0)
        log.append("made")
        return Session()

    def generator() -> Iterator[Session]:
        log.append("made")
        try:
            yield Session()
        except BaseException as error:
            log.append(error)
            raise
        log.append("finished")

    async def async_generator() -> AsyncIterator[Session]:
        await asyncio.sleep(0)
        log.append("made")
        try:
            yield Session()
        except BaseException as error:
            log.append(error)
            raise
        await asyncio.sleep(0)
        log.append("finished")

    return {each.__name__: each for each in (plain, coroutine, generator, async_generator)}


KINDS = list(providers_of_every_kind([]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async", [True, False])
async def test_every_kind_gives_to_every_handler(kind: str, is_async: bool) -> None:
    log: list[Any] = []
    program = subscriptions()
    program.provide(providers_of_every_kind(log)[kind])

    async def handler(event: Placed, session: Session) -> None:
        log.append((event, type(session)))

    def plain_handler(event: Placed, *, session: Session) -> None:
        log.append((event, type(session)))

    program.declare("invoices", {})(handler if is_async else plain_handler)
    await run(program)
    assert log == ["made", (Placed(1), Session), *(["finished"] if "generator" in kind else [])]


@pytest.mark.parametrize("kind", ["generator", "async_generator"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [ValueError("wrong"), Skip("why")])
async def test_a_generator_gets_the_failure_of_the_call(kind: str, is_async: bool, error: Exception) -> None:
    log: list[Any] = []
    program = subscriptions()
    program.provide(providers_of_every_kind(log)[kind])

    async def handler(session: Session) -> None:
        raise error

    def plain_handler(session: Session) -> None:
        raise error

    program.declare("invoices", {})(handler if is_async else plain_handler)
    with pytest.raises(type(error)) as raised:
        await run(program)
    assert raised.value is error
    assert log == ["made", error]


async def test_a_cancelled_call_is_undone_too() -> None:
    log: list[Any] = []
    program = subscriptions()
    program.provide(providers_of_every_kind(log)["async_generator"])
    started = asyncio.Event()

    @program.declare("invoices", {})
    async def handler(session: Session) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run(program))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(entry) for entry in log] == [str, asyncio.CancelledError]


async def test_a_failure_that_a_generator_swallows_is_still_one() -> None:
    program = subscriptions()

    @program.provide
    def session() -> Iterator[Session]:
        with suppress(ValueError):
            yield Session()

    @program.declare("invoices", {})
    async def handler(session: Session) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="^wrong$"):
        await run(program)


async def test_a_failure_to_finish_is_one_even_if_another_swallows_it() -> None:
    program = subscriptions()

    @program.provide
    def session() -> Iterator[Session]:
        with suppress(ValueError):
            yield Session()

    @program.provide
    async def mailer(session: Session) -> AsyncGenerator[Mailer, None]:
        yield Mailer(session)
        raise ValueError("commit failed")

    @program.declare("invoices", {})
    async def handler(mailer: Mailer) -> None: ...

    with pytest.raises(ValueError, match="commit failed"):
        await run(program)


async def test_what_a_generator_raises_instead_takes_its_place() -> None:
    program = subscriptions()

    @program.provide
    def session() -> Generator[Session, None, None]:
        try:
            yield Session()
        except ValueError as error:
            raise KeyError("other") from error

    @program.declare("invoices", {})
    async def handler(session: Session) -> None:
        raise ValueError("wrong")

    with pytest.raises(KeyError, match="other"):
        await run(program)


async def test_what_was_made_is_finished_when_the_next_cannot_be_made() -> None:
    log: list[Any] = []
    program = subscriptions()
    program.provide(providers_of_every_kind(log)["generator"])
    error = ValueError("no mail today")

    @program.provide
    async def mailer(session: Session) -> Mailer:
        raise error

    @program.declare("invoices", {})
    async def handler(session: Session, mailer: Mailer) -> None: ...

    with pytest.raises(ValueError, match="no mail today"):
        await run(program)
    assert log == ["made", error]


async def test_things_are_shared_within_a_call_and_new_in_the_next() -> None:
    log: list[Any] = []
    program = subscriptions()
    program.provide(providers_of_every_kind(log)["generator"])

    @program.provide
    def mailer(*, session: Session) -> Mailer:
        return Mailer(session)

    seen: list[Session] = []

    @program.declare("invoices", {})
    async def handler(mailer: Mailer, session: Session) -> None:
        assert mailer.session is session
        seen.append(session)

    await run(program)
    await run(program)
    assert log == ["made", "finished"] * 2
    assert seen[0] is not seen[1]


async def test_things_are_finished_in_reverse() -> None:
    log: list[str] = []
    program = subscriptions()

    @program.provide
    def mailer(session: Session) -> Iterator[Mailer]:
        yield Mailer(session)
        log.append("mailer")

    @program.provide
    async def session(clock: Clock) -> AsyncIterator[Session]:
        yield Session()
        log.append("session")

    @program.provide
    def clock() -> Iterator[Clock]:
        yield Clock()
        log.append("clock")

    @program.declare("invoices", {})
    def handler(mailer: Mailer) -> None: ...

    await run(program)
    assert log == ["mailer", "session", "clock"]


async def test_a_provider_may_ask_for_message_context_and_transaction() -> None:
    program = subscriptions()
    seen: list[Any] = []

    @program.provide
    def session(message: Message, context: Context, tx: Transaction, size: int = 3) -> Session:  # type: ignore[type-arg]
        seen.extend([message.position, context.subscription, tx, size])
        return Session()

    @program.declare("invoices", {})
    async def handler(event: Placed, session: Session) -> None: ...

    await run(program, message(position=9))
    assert seen == [9, "invoices", TRANSACTION, 3]
    assert program["invoices"].takes_transaction


async def test_plain_providers_of_a_plain_handler_run_in_its_thread() -> None:
    threads: list[int] = []
    program = subscriptions()

    @program.provide
    def session() -> Iterator[Session]:
        threads.append(threading.get_ident())
        yield Session()
        threads.append(threading.get_ident())

    @program.provide
    async def mailer(session: Session) -> AsyncIterator[Mailer]:
        assert threading.get_ident() == loop_thread
        yield Mailer(session)
        assert threading.get_ident() == loop_thread

    @program.declare("invoices", {})
    def handler(mailer: Mailer) -> None:
        threads.append(threading.get_ident())

    loop_thread = threading.get_ident()
    await run(program)
    assert len(threads) == 3
    assert len({*threads, loop_thread}) == 2


async def test_a_payload_that_does_not_decode_is_found_before_anything_is_made() -> None:
    log: list[Any] = []
    program = subscriptions()
    program.provide(providers_of_every_kind(log)["plain"])

    @program.declare("invoices", {})
    async def handler(event: Placed, session: Session) -> None: ...

    with pytest.raises(Undecodable):
        await run(program, message(data=[]))
    assert log == []


async def test_a_default_stays_where_nobody_provides_and_goes_where_somebody_does() -> None:
    seen: list[Any] = []

    async def handler(session: Session | None = None, debug: bool = False) -> None:
        seen.append((type(session), debug))

    for provided in (False, True):
        program = subscriptions()
        program.declare("invoices", {})(handler)
        if provided:
            program.provide(providers_of_every_kind([])["plain"])
        await run(program)
    assert seen == [(type(None), False), (Session, False)]


ReadOnly = NewType("ReadOnly", Session)


async def test_what_is_given_need_not_be_a_class() -> None:
    program = subscriptions()
    seen: list[Any] = []

    @program.provide
    def read_only() -> ReadOnly:
        return ReadOnly(Session())

    @program.provide
    def names() -> list[str]:
        return ["a"]

    @program.declare("invoices", {})
    async def handler(session: ReadOnly, names: list[str]) -> None:
        seen.append((type(session), names))

    await run(program)
    assert seen == [(Session, ["a"])]


async def test_a_method_may_provide() -> None:
    class Pool:
        def session(self) -> Iterator[Session]:
            yield Session()

        async def __call__(self) -> AsyncIterator[Clock]:
            yield Clock()

    program = subscriptions()
    program.provide(Pool().session)
    program.provide(Pool())
    seen: list[Any] = []

    @program.declare("invoices", {})
    async def handler(session: Session, clock: Clock) -> None:
        seen.extend([session, clock])

    await run(program)
    assert [type(each) for each in seen] == [Session, Clock]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_generator_yields_once(is_async: bool) -> None:
    program = subscriptions()

    def never() -> Iterator[Session]:
        yield from ()

    async def twice() -> AsyncIterator[Session]:
        yield Session()
        yield Session()

    program.provide(twice if is_async else never)

    @program.declare("invoices", {})
    async def handler(session: Session) -> None: ...

    with pytest.raises(RuntimeError, match=r"twice .* yielded more than once|never .* yielded nothing"):
        await run(program)


@dataclass
class Settings:
    """A dataclass, as payloads are."""


async def test_a_dataclass_may_be_provided_if_that_is_declared_first() -> None:
    program = subscriptions()

    @program.provide
    def settings() -> Settings:
        return Settings()

    seen: list[Any] = []

    @program.declare("invoices", {})
    async def handler(event: Placed, settings: Settings) -> None:
        seen.append(settings)

    await run(program)
    assert seen == [Settings()]
