"""Which classes payloads are of, as a program declares them."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from milepost.log.codec import Codec, MessageClass

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


class Registering:
    """The declarations of messages: decorators of whatever appends and reads."""

    _codec: Codec

    def message(
        self,
        name: str | None = None,
        *,
        version: int = 1,
        aliases: Iterable[str] = (),
        properties: Iterable[str] = (),
    ) -> Callable[[C], C]:
        """Registers a dataclass, a msgspec struct or a Pydantic model as the payload of a type.

        Args:
            name: The stored type. Defaults to the class's own name.
            version: Grows when old payloads no longer fit; `upcast` then takes them along. Defaults to 1.
            aliases: Older names of the type, which decode to this class too.
            properties: Fields that are copied to the message's properties, where filters see them.
        """

        if isinstance(name, type):
            raise TypeError(f"write @mp.message() above {name.__name__}, with parentheses")

        def register(cls: C) -> C:
            declared = MessageClass(cls, name or cls.__name__, version, tuple(aliases), tuple(properties))
            self._codec.register(declared)
            return cls

        return register

    def upcast(self, name: str, *, from_version: int) -> Callable[[F], F]:
        """Registers the function that takes a decoded payload of `from_version` to the next version."""

        def register(function: F) -> F:
            self._codec.register_upcast(name, from_version, function)
            return function

        return register
