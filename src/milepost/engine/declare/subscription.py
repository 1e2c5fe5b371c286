"""A subscription with its handlers, and all of a program."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeVar

from milepost.engine.declare.context import CannotAppend, ProgressLocation
from milepost.engine.declare.declaration import (
    DEFAULT_BATCH_MESSAGES,
    DEFAULT_LANES,
    DEFAULT_TRANSACTION_LANES,
    Declaration,
)
from milepost.engine.declare.handler import Handler, Instrument
from milepost.engine.declare.providers import Providers
from milepost.engine.declare.signature import FindMessageClass, Function, ParameterSource, Signature
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.errors import UnknownSubscription
from milepost.log.query import Selection
from milepost.names import suggestion

F = TypeVar("F", bound=Function)


class Subscription:
    """What `mp.subscription` gives: a decorator for one handler, or with `.on` for several under one cursor."""

    def __init__(
        self,
        declaration: Declaration,
        classes: FindMessageClass,
        providers: Providers,
        progress_location: ProgressLocation,
        *,
        group: str,
        instruments: Sequence[Instrument],
    ) -> None:
        self.declaration = declaration
        self.group = group
        """The name of the program's subscriptions, and of those of others like it."""
        self.logger = SubscriptionLogger(declaration.name, group)
        """What is logged of it."""
        self._instruments = instruments
        self._progress_location = progress_location
        self._classes = classes
        self._providers = providers
        self._signatures: list[Signature] = []
        self._alone = False
        self._by_type: dict[str, Handler] = {}
        self._any: Handler | None = None
        self.handlers: tuple[Handler, ...] = ()
        """Known once the program has started."""

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def names(self) -> list[str]:
        """Its name, and the one that it had before, if it was renamed."""
        return [name for name in (self.name, self.declaration.renamed_from) if name is not None]

    def __call__(self, function: F) -> F:
        """Declares its only handler; the function stays as it is."""
        if self._signatures:
            raise self._wrong(f"{self._signatures[0].described} handles it already: use .on for several")
        self._add(function)
        self._alone = True
        return function

    def on(self, function: F) -> F:
        """Declares a handler of some of its types; the function stays as it is."""
        if self._alone:
            raise self._wrong(f"{self._signatures[0].described} handles it alone: declare both with .on")
        self._add(function)
        return function

    def adopt(self, other: "Subscription") -> None:
        """Has the handlers of another from now on."""
        self._signatures = list(other._signatures)
        self._alone = other._alone

    def _add(self, function: Function) -> None:
        signature = Signature.of(function, self._classes, self._providers)
        self._refuse_batch_of_one(signature)
        self._refuse_unselected(signature)
        self._refuse_append(signature)
        for other in self._signatures:
            self._refuse_overlap(signature, other)
        self._signatures.append(signature)

    def _refuse_batch_of_one(self, signature: Signature) -> None:
        batch = self.declaration.batch
        if batch is not None and not signature.batch:
            raise self._wrong(
                f"batch={batch}, but {signature.described} takes one message: annotate its parameter with list[…]"
            )

    def _refuse_unselected(self, signature: Signature) -> None:
        if signature.types is not None and not self.declaration.taken(signature.types):
            raise self._wrong(
                f"{signature.described} takes {_joined_types(signature.types)}, of which "
                f"types={self.declaration.types} selects nothing"
            )

    def _refuse_append(self, signature: Signature) -> None:
        """What can be seen in the handler itself; what it calls is told when it is called."""
        if self._progress_location is not ProgressLocation.IN_ANOTHER_DATABASE:
            return
        for each in signature.asked:
            if each.source is ParameterSource.TRANSACTION and signature.described.calls(each.parameter, "append"):
                raise self._wrong(f"{signature.described}: {CannotAppend()}")

    def _refuse_overlap(self, signature: Signature, other: Signature) -> None:
        both = f"{signature.described} and {other.described}"
        if signature.types is None or other.types is None:
            raise self._wrong(f"{both}: one of them takes any message: name the payloads of each")
        if common := signature.types & other.types:
            raise self._wrong(f"{both} both take {_joined_types(common)}")
        if signature.batch != other.batch:
            raise self._wrong(f"{both}: one of them takes batches: make it two subscriptions")

    def _wrong(self, problem: str) -> ValueError:
        return ValueError(f"subscription {self.name!r}: {problem}")

    @property
    def has_handlers(self) -> bool:
        """Whether somebody handles its messages."""
        return bool(self._signatures)

    def bind(self) -> None:
        """Makes its handlers ready; refuses to have none, and what nobody provides."""
        if not self._signatures:
            raise self._wrong("it has no handler: decorate a function with it, or with its .on")
        self.handlers = tuple(Handler(signature, self._providers) for signature in self._signatures)
        for handler, instrument in product(self.handlers, reversed(self._instruments)):
            handler.attach_instrument(instrument)
        if self._progress_location is ProgressLocation.OUTSIDE and self.takes_transaction:
            raise self._wrong(
                f"it takes a Transaction, and progress is kept {self._progress_location.value}: for writing "
                "exactly once give the address of a database as progress, or nothing"
            )
        if self._progress_location is ProgressLocation.OUTSIDE and self.declaration.paused:
            raise self._wrong(
                f"paused: progress is kept {self._progress_location.value}, where nobody could resume it"
            )
        if self.declaration.isolation != "read committed" and not self.takes_transaction:
            level = self.declaration.isolation
            raise self._wrong(f"isolation={level!r} is for handlers that take a Transaction, and none of its does")
        self._any = next((handler for handler in self.handlers if handler.types is None), None)
        self._by_type = {name: handler for handler in self.handlers for name in handler.types or ()}

    def handler_of(self, type: str) -> Handler | None:
        """The handler of a message's type; None if it is not for this subscription."""
        return self._by_type.get(type, self._any)

    @property
    def types(self) -> frozenset[str] | None:
        """The types that its handlers take; None: any."""
        known = [signature.types for signature in self._signatures]
        named = [types for types in known if types is not None]
        return frozenset().union(*named) if named and len(named) == len(known) else None

    @property
    def selection(self) -> Selection:
        """What it selects: what was declared, of the types that its handlers take. The filter comes on top."""
        return self.declaration.selection(self.types)

    @property
    def selects(self) -> str:
        """Selection and filter as one text, for its definition."""
        return self.declaration.selects(self.types)

    @property
    def batch(self) -> int | None:
        """At most so many messages for a call; None: one, and not in a list."""
        if not any(signature.batch for signature in self._signatures):
            return None
        return self.declaration.batch or min(DEFAULT_BATCH_MESSAGES, self.declaration.window)

    @property
    def lanes(self) -> int:
        """How many processes can share it. Known once it is bound."""
        return self.declaration.lanes or (DEFAULT_TRANSACTION_LANES if self.takes_transaction else DEFAULT_LANES)

    @property
    def takes_transaction(self) -> bool:
        """Whether a handler writes in the transaction of its progress."""
        return any(handler.takes_transaction for handler in self.handlers)

    def __repr__(self) -> str:
        return f"Subscription({self.name!r})"


class ProgramSubscriptions:
    """All subscriptions and providers of a program."""

    def __init__(
        self,
        classes: FindMessageClass,
        progress_location: ProgressLocation = ProgressLocation.WITH_THE_LOG,
        *,
        group: str = "default",
        instruments: Sequence[Instrument] = (),
    ) -> None:
        self._classes = classes
        self._progress_location = progress_location
        self._group = group
        self._instruments = instruments
        self._providers = Providers(classes)
        self._by_name: dict[str, Subscription] = {}

    def declare(self, name: str, options: Mapping[str, Any]) -> Subscription:
        """A new subscription, to be used as a decorator or with `.on`."""
        declaration = Declaration.of(name, options)
        if name in self._by_name:
            raise ValueError(f"subscription {name!r} is declared already")
        self._by_name[name] = self._made(declaration)
        return self._by_name[name]

    def _made(self, declaration: Declaration) -> Subscription:
        return Subscription(
            declaration,
            self._classes,
            self._providers,
            self._progress_location,
            group=self._group,
            instruments=self._instruments,
        )

    def provide(self, function: F) -> F:
        """Declares what gives handlers something, found by its return type; the function stays as it is."""
        return self._providers.provide(function)

    def adopt(self, other: "ProgramSubscriptions", instead: Mapping[Any, Any]) -> None:
        """Has the subscriptions and providers of another from now on, and of some types objects instead."""
        self._providers.adopt(other._providers, instead)
        for theirs in other:
            mine = self._made(theirs.declaration)
            mine.adopt(theirs)
            self._by_name[mine.name] = mine

    def check(self) -> None:
        """Make everything ready when a worker starts; refuse what is missing, a handler too."""
        self._providers.check()
        for subscription in self:
            subscription.bind()

    def check_handlers(self) -> None:
        """Make the handlers declared so far ready when the program opens; refuse what nobody provides."""
        self._providers.check()
        for subscription in self:
            if subscription.has_handlers:
                subscription.bind()

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Subscription:
        if name not in self._by_name:
            hint = suggestion(name, self._by_name) if self._by_name else "; none is declared"
            raise UnknownSubscription(name, hint)
        return self._by_name[name]


def _joined_types(types: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(types)))
