"""Handlers, ready to be called, and the choice between them."""

import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from engine.shop import CODEC, Cancelled, Placed, Refunded, context, message, subscriptions
from milepost.engine.declare.context import Context, Transaction
from milepost.engine.declare.handler import Handler, Undecodable
from milepost.engine.declare.subscription import Subscription
from milepost.errors import InvalidMessage, UnknownSubscription
from milepost.log.message import Message

CONTEXT = context()
TRANSACTION = cast(Transaction, object())
NOTHING = cast(Placed, None)


def ready(function: Callable[..., Any], **options: Any) -> Handler:
    """The function as the only handler of a subscription."""
    program = subscriptions()
    program.declare("invoices", options)(function)
    program.check()
    (handler,) = program["invoices"].handlers
    return handler


async def call(handler: Handler, subject: Any) -> Any:
    """As a worker calls it."""
    made = handler.call(*handler.prepare(subject, CONTEXT, TRANSACTION))
    return await made if handler.is_async else made


async def test_each_parameter_gets_what_it_asks_for() -> None:
    seen: list[Any] = []

    async def handler(event: Placed, context: Context, message: Message[Placed], tx: Transaction) -> None:
        seen.extend([event, context, message, tx])

    given = message(position=3)
    await call(ready(handler), given)
    assert seen == [Placed(3), CONTEXT, given, TRANSACTION]


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Placed, Placed(1)),
        (Placed | Cancelled, Placed(1)),
        (Context, CONTEXT),
        (list[Placed], [Placed(1), Placed(2)]),
        (list[Placed | Cancelled], [Placed(1), Placed(2)]),
    ],
)
async def test_one_parameter_is_enough(hint: Any, expected: Any) -> None:
    seen: list[Any] = []

    async def handler(given: Any) -> None:
        seen.append(given)

    handler.__annotations__["given"] = hint
    made = ready(handler)
    await call(made, [message(), message(position=2)] if made.batch else message())
    assert seen == [expected]


async def test_messages_and_payloads_of_a_batch_go_together() -> None:
    seen: list[Any] = []

    async def handler(events: list[Placed], messages: list[Message[Placed]], context: Context) -> None:
        seen.extend(zip(events, messages, strict=True))

    given = [message(), message(position=2)]
    await call(ready(handler), given)
    assert seen == [(Placed(1), given[0]), (Placed(2), given[1])]


async def test_a_batch_gets_a_list_of_its_own() -> None:
    def handler(messages: list[Message[Any]]) -> None:
        messages.clear()

    given = [message()]
    await call(ready(handler), given)
    assert len(given) == 1


async def test_keywords_defaults_and_positions_find_their_place() -> None:
    seen: list[Any] = []

    async def handler(
        debug: bool = False, event: Placed = NOTHING, /, limit: int = 7, *, context: Context, x: int = 9
    ) -> None:
        seen.extend([debug, event, limit, context, x])

    await call(ready(handler), message())
    assert seen == [False, Placed(1), 7, CONTEXT, 9]


async def test_methods_partials_objects_and_wrapped_functions_are_called() -> None:
    seen: list[Any] = []

    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, event: Placed) -> None:
            seen.append((self.name, event.order))

        def method(self, event: Placed) -> None:
            seen.append((self.name, event.order))

    async def two(name: str, event: Placed) -> None:
        seen.append((name, event.order))

    @functools.wraps(two)
    def wrapped(*args: Any) -> Coroutine[Any, Any, None]:
        return two("wrapped", *args[1:])

    for handler in (Shop("object"), Shop("method").method, functools.partial(two, "partial")):
        await call(ready(handler), message())
    await call(ready(functools.partial(wrapped, "lost")), message())
    assert seen == [("object", 1), ("method", 1), ("partial", 1), ("wrapped", 1)]


async def test_a_static_method_is_declared_inside_its_class() -> None:
    program = subscriptions()

    class Shop:
        @program.declare("invoices", {})
        @staticmethod
        async def placed(event: Placed) -> int:
            return event.order

    program.check()
    assert await call(program["invoices"].handlers[0], message()) == 1
    assert await Shop.placed(Placed(4)) == 4


@pytest.mark.parametrize("hint", [Placed, Message[Placed]])
def test_a_payload_that_does_not_fit_is_told_apart_from_a_failed_call(hint: Any) -> None:
    async def handler(event: Any, context: Context) -> None: ...

    handler.__annotations__["event"] = hint
    wrong = message(data={"order": "seven"}, position=5)
    with pytest.raises(Undecodable, match=r"^data: Message\(.*position 5\) does not decode as Placed") as refused:
        ready(handler).prepare(wrong, CONTEXT, None)
    assert refused.value.message is wrong
    assert isinstance(refused.value.__cause__, InvalidMessage)


def test_an_upcast_that_fails_is_undecodable() -> None:
    def add(data: Any) -> Any:
        return {"order": data["ordr"]}

    CODEC.register_upcast("order.refunded", 1, add)

    async def handler(event: Refunded) -> None: ...

    with pytest.raises(Undecodable, match=r"data: Message\('order.refunded'.*KeyError\('ordr'\)"):
        ready(handler).prepare(message("order.refunded"), CONTEXT, None)


@pytest.mark.parametrize("hint", [list[Placed], list[Message[Placed]]])
def test_in_a_batch_the_undecodable_one_is_named(hint: Any) -> None:
    async def handler(events: Any) -> None: ...

    handler.__annotations__["events"] = hint
    batch = [message(position=1), message(position=2, data=[]), message(position=3)]
    with pytest.raises(Undecodable) as refused:
        ready(handler).prepare(batch, CONTEXT, None)
    assert refused.value.message is batch[1]


def test_without_a_named_payload_nothing_is_decoded() -> None:
    wrong = message(data={"order": "seven"})
    assert ready(lambda m: None).prepare(wrong, CONTEXT, None) == (wrong,)


def test_a_plain_handler_that_returns_something_to_await_has_failed() -> None:
    async def forgotten(m: Any) -> None: ...

    made = ready(lambda m: forgotten(m))
    assert not made.is_async
    with pytest.raises(TypeError, match="lambda.* returned a coroutine, which nobody runs: write `async def`"):
        made.call(*made.prepare(message(), CONTEXT, None))
    made = ready(lambda m: (x for x in [m]))
    with pytest.raises(TypeError, match="returned a generator, which nobody runs"):
        made.call(*made.prepare(message(), CONTEXT, None))
    made = ready(lambda m: 5)
    made.call(*made.prepare(message(), CONTEXT, None))


def test_the_function_stays_as_it_is() -> None:
    async def handler(event: Placed) -> None: ...

    program = subscriptions()
    assert program.declare("invoices", {})(handler) is handler
    assert program.declare("refunds", {}).on(handler) is handler


def two_handlers(**options: Any) -> Subscription:
    program = subscriptions()
    orders = program.declare("orders", options)

    @orders.on
    async def placed(event: Placed) -> None: ...

    @orders.on
    async def cancelled(event: Cancelled, tx: Transaction) -> None: ...

    program.check()
    return orders


def test_the_type_chooses_the_handler() -> None:
    orders = two_handlers()
    chosen = {
        name: (found := orders.handler_of(name)) and found.name.rpartition(".")[2]
        for name in ("order.placed", "OrderPlaced", "order.cancelled", "order.refunded")
    }
    assert chosen == {
        "order.placed": "placed",
        "OrderPlaced": "placed",
        "order.cancelled": "cancelled",
        "order.refunded": None,
    }
    assert orders.takes_transaction


def test_a_type_that_no_handler_takes_is_not_selected() -> None:
    orders = two_handlers(category="order")
    assert orders.selection.matches(message("OrderPlaced"))
    assert not orders.selection.matches(message("order.refunded"))
    assert json.loads(orders.selects)["types"] == ["OrderPlaced", "order.cancelled", "order.placed"]
    assert json.loads(two_handlers(types=["order.*"]).selects)["types"] == ["order.cancelled", "order.placed"]


def test_a_handler_of_any_message_selects_what_is_declared() -> None:
    program = subscriptions()
    every = program.declare("every", {"types": ["order.*"]})
    every(lambda m: None)
    program.check()
    assert every.types is None
    assert json.loads(every.selects)["types"] == ["order.*"]
    assert every.handler_of("order.refunded") is every.handlers[0]
    assert not every.takes_transaction


def test_handlers_that_overlap_are_refused() -> None:
    orders = subscriptions().declare("orders", {})

    @orders.on
    async def placed(event: Placed) -> None: ...

    with pytest.raises(
        ValueError, match=r"^subscription 'orders': .*lambda.* and .*placed.*: one of them takes any"
    ):
        orders.on(lambda m: None)
    with pytest.raises(ValueError, match="both take 'OrderPlaced', 'order.placed'$"):

        @orders.on
        async def again(event: Placed | Cancelled) -> None: ...

    with pytest.raises(ValueError, match="one of them takes batches: make it two subscriptions"):

        @orders.on
        async def batch(events: list[Cancelled]) -> None: ...


def test_a_handler_of_types_that_are_not_selected_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"takes 'OrderPlaced', 'order.placed', of which types=\('payment.\*',\) se"
    ):

        @subscriptions().declare("orders", {"types": "payment.*"})
        async def placed(event: Placed) -> None: ...


def test_one_handler_is_alone() -> None:
    program = subscriptions()
    first, second = program.declare("a", {}), program.declare("b", {})
    first(lambda m: None)
    with pytest.raises(ValueError, match="handles it already: use .on for several"):
        first(lambda m: None)
    with pytest.raises(ValueError, match="handles it alone: declare both with .on"):
        first.on(lambda m: None)
    second.on(lambda m: None)
    with pytest.raises(ValueError, match="handles it already"):
        second(lambda m: None)


def test_a_batch_needs_a_handler_of_a_list() -> None:
    program = subscriptions()
    with pytest.raises(
        ValueError, match=r"^subscription 'a': batch=50, but .*lambda.* annotate .* with list\[…\]"
    ):
        program.declare("a", {"batch": 50})(lambda m: None)


@pytest.mark.parametrize(
    ("options", "size"), [({}, 100), ({"batch": 7}, 7), ({"window": 10}, 10), ({"batch": 1, "window": 1}, 1)]
)
def test_how_large_a_batch_is(options: dict[str, Any], size: int) -> None:
    program = subscriptions()
    made = program.declare("a", options)

    @made
    async def handler(events: list[Placed]) -> None: ...

    assert made.batch == size
    assert two_handlers().batch is None


def test_all_tracked_and_exactly_once_go_together() -> None:
    async def handler(event: Placed, tx: Transaction) -> None: ...

    assert ready(handler, tracking="all").takes_transaction


def test_a_subscription_without_a_handler_is_refused_at_the_start() -> None:
    program = subscriptions()
    program.declare("orders", {})
    with pytest.raises(ValueError, match="^subscription 'orders': it has no handler: decorate a function with it"):
        program.check()


def test_a_program_knows_its_subscriptions() -> None:
    program = subscriptions()
    with pytest.raises(UnknownSubscription, match="there is no subscription 'orders'; none is declared"):
        program["orders"]
    orders, invoices = program.declare("orders", {}), program.declare("invoices", {})
    assert list(program) == [orders, invoices]
    assert ("orders" in program, len(list(program)), program["invoices"]) == (True, 2, invoices)
    with pytest.raises(UnknownSubscription, match="'order': did you mean 'orders'"):
        program["order"]


async def test_a_transaction_passes_on() -> None:
    asked: list[Any] = []

    class Connection:
        async def execute(self, *args: Any) -> str:
            asked.append(args)
            return "cursor"

    async def append(stream: str, messages: Any, *, expected: int) -> None:
        asked.append((stream, messages, expected))

    tx = Transaction(Connection(), append)  # type: ignore[arg-type]
    assert await tx.execute("select %s", (1,)) == "cursor"  # type: ignore[comparison-overlap]
    await tx.append("receipt-1", Placed(1), expected=3)
    assert asked == [("select %s", (1,)), ("receipt-1", Placed(1), 3)]
    assert isinstance(tx.connection, Connection)  # type: ignore[unreachable]
