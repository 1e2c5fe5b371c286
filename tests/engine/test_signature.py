"""What handlers ask for by their annotations, and what is refused when they are declared."""

import email.message
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pytest

from engine.shop import CLASSES, Cancelled, Placed, Unregistered
from milepost.engine.declare.context import Context, Transaction
from milepost.engine.declare.signature import ParameterSource, Signature
from milepost.log.message import Message

if TYPE_CHECKING:
    from engine.shop import Refunded

PLACED = frozenset({"order.placed", "OrderPlaced"})
BOTH = PLACED | {"order.cancelled"}


class Session:
    """Something that a provider may give."""


def read(function: Any, *provided: Any) -> Signature:
    return Signature.of(function, CLASSES.get, provided)


def sources(signature: Signature) -> list[ParameterSource]:
    return [each.source for each in signature.asked]


def takes(hint: Any) -> Callable[[Any], Awaitable[None]]:
    """An async handler with one parameter of this annotation."""

    async def handler(event: Any) -> None: ...

    handler.__annotations__["event"] = hint
    return handler


@pytest.mark.parametrize(
    ("hint", "source", "types", "batch"),
    [
        (Message, ParameterSource.MESSAGE, None, False),
        (Message[Any], ParameterSource.MESSAGE, None, False),
        (Message[Placed], ParameterSource.MESSAGE, PLACED, False),
        (Message[Placed | Cancelled], ParameterSource.MESSAGE, BOTH, False),
        (Placed, ParameterSource.PAYLOAD, PLACED, False),
        (Cancelled, ParameterSource.PAYLOAD, {"order.cancelled"}, False),
        (Placed | Cancelled, ParameterSource.PAYLOAD, BOTH, False),
        (Union[Placed, Cancelled], ParameterSource.PAYLOAD, BOTH, False),  # noqa: UP007
        (list[Message], ParameterSource.MESSAGE, None, True),  # type: ignore[type-arg]
        (list[Message[Any]], ParameterSource.MESSAGE, None, True),
        (list[Message[Placed]], ParameterSource.MESSAGE, PLACED, True),
        (list[Placed], ParameterSource.PAYLOAD, PLACED, True),
        (list[Placed | Cancelled], ParameterSource.PAYLOAD, BOTH, True),
        (Annotated[Placed, "the event"], ParameterSource.PAYLOAD, PLACED, False),
        (list[Annotated[Placed, "the event"]], ParameterSource.PAYLOAD, PLACED, True),
        ("Placed", ParameterSource.PAYLOAD, PLACED, False),
        ("Placed | Cancelled", ParameterSource.PAYLOAD, BOTH, False),
        ("list[Placed]", ParameterSource.PAYLOAD, PLACED, True),
        (list["Placed"], ParameterSource.PAYLOAD, PLACED, True),
        ("Message[Placed]", ParameterSource.MESSAGE, PLACED, False),
        (Context, ParameterSource.CONTEXT, None, False),
        (Transaction, ParameterSource.TRANSACTION, None, False),
        (Session, ParameterSource.PROVIDER, None, False),
    ],
)
def test_what_an_annotation_means(hint: Any, source: ParameterSource, types: set[str] | None, batch: bool) -> None:
    signature = read(takes(hint))
    assert sources(signature) == [source]
    assert signature.types == types
    assert signature.batch is batch


def test_the_payload_may_come_with_everything_else() -> None:
    async def handler(
        event: Placed, message: Message[Placed], tx: Transaction, context: Context, session: Session
    ) -> None: ...

    assert sources(read(handler)) == [
        ParameterSource.PAYLOAD,
        ParameterSource.MESSAGE,
        ParameterSource.TRANSACTION,
        ParameterSource.CONTEXT,
        ParameterSource.PROVIDER,
    ]


def test_the_only_positional_parameter_gets_the_message() -> None:
    scale = 2
    for function in (lambda m: None, lambda m, scale=scale: None, lambda m, *rest, **named: None):
        assert sources(read(function))[0] is ParameterSource.MESSAGE


@pytest.mark.parametrize(
    "function", [lambda: None, lambda *args, **kwargs: None, lambda scale=2: None, lambda *, scale=2: None]
)
def test_a_handler_that_would_be_called_with_nothing_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=r"asks for no message: annotate .* Message, .*functools\.wraps"):
        read(function)


def test_defaults_that_nobody_provides_are_left_alone() -> None:
    async def handler(  # type: ignore[no-untyped-def]
        event: Placed,
        debug: bool = False,
        limit: int | None = None,
        unknown: "NoSuchClass" = None,  # type: ignore[name-defined]  # noqa: F821
        bare=5,
        *,
        session: Session | None = None,
    ) -> None: ...

    found = {each.parameter.name: (each.source, each.hint) for each in read(handler).asked}
    assert found["unknown"] == found["bare"] == (ParameterSource.DEFAULT, None)
    assert found["debug"] == (ParameterSource.PROVIDER, bool)
    assert found["session"] == (ParameterSource.PROVIDER, Session)


ANNOTATIONS: list[tuple[Any, str]] = [
    (Placed | None, "it is always given, or never: write Placed instead of Placed | None"),
    (Optional[Placed], "write Placed instead of Placed | None"),  # noqa: UP045
    (Transaction | None, "write Transaction instead of Transaction | None"),
    (Context | None, "write Context instead"),
    (Session | None, "write Session instead"),
    (Unregistered, "Unregistered is not registered: decorate it with @mp.message(), or declare the provider"),
    (list[Unregistered], "Unregistered is not registered: decorate it"),
    (Message[Unregistered], "Unregistered is not registered: decorate it"),
    (Placed | Unregistered, "Unregistered is not registered: decorate it"),
    (Message[int], "int is no registered class: decorate it with @mp.message()"),
    (Placed | int, "is not a choice of payloads: write A | B of registered classes"),
    (Message[Placed] | Message[Cancelled], "is not a choice of payloads: write A | B"),
    (list[Placed] | Placed, "is not a choice of payloads"),
    (list, "nobody provides list: write Message, the class of a payload, list[…] of one of them"),
    (list[int], "a list of int is no batch: write list[Message], or list[…] of a payload"),
    (list[Session], "a list of"),
    (list[list[Placed]], "is no batch"),
    (dict, "nobody provides dict"),
    (dict[str, Any], "nobody provides dict[str, typing.Any]"),
    (str, "nobody provides str: write Message"),
    (int, "nobody provides int"),
    (object, "nobody provides object"),
    (Any, "nobody provides "),
    (None, "nobody provides NoneType"),
    (tuple[Placed, ...], "for a batch write list[…]"),
    (Sequence[Placed], "for a batch write list[…]"),
    (Iterator[Message[Placed]], "for a batch write list[…]"),
    (tuple[int, ...], "nobody provides tuple["),
    (Literal["a"], "nobody provides typing.Literal['a']"),
    (email.message.Message, "this is Message of email.message, not that of milepost"),
    ("NoSuchClass", "the annotation 'NoSuchClass' cannot be resolved (name 'NoSuchClass' is not defined)"),
    ("Refunded", "in the module itself and not only under TYPE_CHECKING"),
    ("1 +", "cannot be resolved"),
]


@pytest.mark.parametrize(("hint", "problem"), ANNOTATIONS)
def test_what_nobody_can_give_is_refused_with_its_place(hint: Any, problem: str) -> None:
    with pytest.raises(TypeError) as refused:
        read(takes(hint))
    assert problem in str(refused.value)
    assert "takes.<locals>.handler (" in str(refused.value)
    assert "test_signature.py:" in str(refused.value)
    assert "parameter 'event'" in str(refused.value)


def test_what_is_optional_and_always_given_is_refused_even_with_a_default() -> None:
    async def handler(event: Placed, tx: Transaction | None = None) -> None: ...

    with pytest.raises(TypeError, match="parameter 'tx': it is always given, or never: write Transaction instead"):
        read(handler)


def test_a_known_provider_comes_first() -> None:
    assert sources(read(takes(Unregistered), Unregistered)) == [ParameterSource.PROVIDER]
    assert sources(read(takes(str), str)) == [ParameterSource.PROVIDER]
    assert sources(read(takes(list[int]), list[int])) == [ParameterSource.PROVIDER]


def test_a_parameter_without_annotation_beside_others_is_refused() -> None:
    with pytest.raises(
        TypeError, match="parameter 'a': it has no annotation: write Message, the class of a payload"
    ):
        read(lambda a, b: None)


def test_a_method_of_no_object_is_refused() -> None:
    class Shop:
        async def placed(self, event: Placed) -> None: ...

    with pytest.raises(TypeError, match="parameter 'self': this is a method of no object: write mp.subscription"):
        read(Shop.placed)


def test_two_payloads_are_refused() -> None:
    async def two(a: Placed, b: Cancelled) -> None: ...
    async def messages(a: Message[Placed], b: Message[Placed]) -> None: ...

    with pytest.raises(TypeError, match=r"parameter 'b': there is one message in a call, and 'a' gets it.*A \| B"):
        read(two)
    with pytest.raises(TypeError, match="parameter 'b': there is one message in a call"):
        read(messages)


def test_a_message_of_another_payload_is_refused() -> None:
    async def other(a: Placed, b: Message[Cancelled]) -> None: ...
    async def batch(a: list[Placed], b: Message[Placed]) -> None: ...

    with pytest.raises(TypeError, match="parameter 'b': it names other payloads than 'a'"):
        read(other)
    with pytest.raises(TypeError, match="parameter 'b': either both this and the payload are a list"):
        read(batch)


def test_a_transaction_for_a_plain_handler_is_refused() -> None:
    def handler(event: Placed, tx: Transaction) -> None: ...

    with pytest.raises(TypeError, match="parameter 'tx': a Transaction is used with await: write `async def`"):
        read(handler)


def generator(event: Placed) -> Iterator[None]:
    yield


async def async_generator(event: Placed) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    "function",
    [generator, async_generator, functools.partial(generator), functools.wraps(generator)(lambda e: None)],
)
def test_a_generator_is_no_handler(function: Any) -> None:
    with pytest.raises(TypeError, match=r"generator .*a handler cannot be a generator"):
        read(function)


class Plain:
    def __call__(self, event: Placed) -> None: ...
    def method(self, event: Placed) -> None: ...

    @staticmethod
    def static(event: Placed) -> None: ...

    @classmethod
    def of_class(cls, event: Placed) -> None: ...


class Async:
    async def __call__(self, event: "Placed") -> None: ...
    async def method(self, event: "Placed") -> None: ...


def plain(event: Placed, extra: int = 0) -> None: ...
async def coroutine(event: Placed, extra: int = 0) -> None: ...


@functools.wraps(coroutine)
def plain_around_async(*args: Any, **kwargs: Any) -> Any:
    return coroutine(*args, **kwargs)


@functools.wraps(plain)
async def async_around_plain(*args: Any, **kwargs: Any) -> None:
    plain(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (plain, False),
        (coroutine, True),
        (Plain(), False),
        (Async(), True),
        (Plain().method, False),
        (Async().method, True),
        (Plain.static, False),
        (staticmethod(plain), False),
        (staticmethod(coroutine), True),
        (Plain.of_class, False),
        (functools.partial(plain, extra=1), False),
        (functools.partial(coroutine, extra=1), True),
        (functools.partial(Async()), True),
        (functools.partial(functools.partial(Async().method)), True),
        (plain_around_async, True),
        (async_around_plain, True),
        (lambda event: None, False),
    ],
)
def test_everything_that_can_be_called_is_understood(function: Any, is_async: bool) -> None:
    signature = read(function)
    assert signature.described.is_async is is_async
    assert sources(signature)[0] in (ParameterSource.PAYLOAD, ParameterSource.MESSAGE)
    assert signature.types in (PLACED, None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "a function is wanted, not None"),
        ("handler", "a function is wanted, not 'handler'"),
        (Async, "Async is a class: give a function, or an instance that can be called"),
        (vars(Plain)["of_class"], "Plain.of_class is a class method: give it from outside of the class"),
        (max, "its signature cannot be read"),
    ],
)
def test_what_cannot_be_called_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        read(given)


def test_a_return_type_that_is_not_there_does_no_harm() -> None:
    async def handler(event: Placed) -> "Refunded": ...  # type: ignore[empty-body]

    assert read(handler).types == PLACED
