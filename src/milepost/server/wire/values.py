"""Values of a request that the library checks itself."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from milepost.errors import InvalidMessage

T = TypeVar("T")


def given(field: str, make: Callable[[], T]) -> T:
    """What is made of a value of the request; one that the library refuses is a fault of the request."""
    with checked(field):
        return make()


@contextmanager
def checked(field: str) -> Iterator[None]:
    """Around a call whose `ValueError` and `TypeError` are about what was sent."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidMessage(field, str(error)) from error


def refuse_repeated(field: str, values: Iterable[str]) -> None:
    """Refuses a name that is there twice, where the second would take the place of the first."""
    for value, count in Counter(values).items():
        if count > 1:
            raise InvalidMessage(field, f"{value!r} is there {count} times: give all that is for it at once")
