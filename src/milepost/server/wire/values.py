"""Values of a request that the library checks itself."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from milepost.engine.values import LONGEST, MOST
from milepost.errors import InvalidMessage
from milepost.log.codec import MAX_INTEGER

T = TypeVar("T")


def described(**words: Any) -> Meta:
    """What the description says of a value that the library checks: its words tell better what is wrong."""
    return Meta(extra_json_schema=words)


Whole = Annotated[int, Meta(ge=1, le=MOST)]
"""How many of something there may be."""
At = Annotated[int, described(minimum=0, maximum=MAX_INTEGER)]
"""A position, or a version."""
Wait = Annotated[float, described(minimum=0, maximum=LONGEST)]
"""Seconds."""
Duration = Annotated[float, described(exclusiveMinimum=0, maximum=LONGEST)]
"""Seconds, more than none."""
Text = Annotated[str, described(minLength=1)]
PropertyName = Annotated[str, described(pattern="^[A-Za-z][A-Za-z0-9_.]*$")]


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
