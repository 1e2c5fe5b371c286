"""Properties that no message has, and that must not hurt anyway."""

from collections import defaultdict
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from milepost.filter import FilterError, compile_filter

TEXTS = [
    "x",
    "!x",
    "x == 1",
    "x != 1",
    "1 == x",
    "x < 1",
    'x == "a"',
    'x >= "a"',
    "x == true",
    "x != false",
    "x == y",
    "x < y",
    "x == x",
    "-x == 1",
    "x + 1 == 2",
    "x / y == 1",
    "x % 2 == 1",
    "exists(x)",
    "exists(x) == y",
    "x && y",
    "x || y",
    "!(x == 1 && y == 2) || x > 3",
    "x == 1 || y == 1 || x == 2",
]


class Evil:
    """Raises at everything that can be asked of it."""

    def _raise(self, *arguments: object) -> Any:
        raise RuntimeError("evil")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __bool__ = __hash__ = __repr__ = __str__ = __len__ = __iter__ = __int__ = _raise
    __add__ = __radd__ = __neg__ = __mod__ = __floordiv__ = __index__ = _raise

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("evil")


class EvilKind(type):
    def _raise(cls, *arguments: object) -> Any:
        raise RuntimeError("evil")

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = _raise

    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError("evil")


class OfEvilKind(metaclass=EvilKind):
    pass


class EvilString(str):
    __slots__ = ()

    def _raise(self, *arguments: object) -> Any:
        raise RuntimeError("evil")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __hash__ = __str__ = __repr__ = __len__ = __iter__ = _raise


class EvilInteger(int):
    def _raise(self, *arguments: object) -> Any:
        raise RuntimeError("evil")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _raise
    __hash__ = __str__ = __repr__ = __int__ = __index__ = __add__ = __neg__ = _raise


class EvilKey(str):
    """Is taken for the property x, and raises when it is compared with it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("evil")

    def __hash__(self) -> int:
        return hash("x")


class EvilDict(dict[str, Any]):
    def _raise(self, *arguments: object) -> Any:
        raise RuntimeError("evil")

    __getitem__ = __contains__ = __iter__ = __len__ = get = keys = items = _raise


VALUES: list[Any] = [
    None,
    1.0,
    float("nan"),
    float("inf"),
    1j,
    2**63,
    -(2**63) - 1,
    10**5000,
    b"a",
    [1],
    (1,),
    {"x": 1},
    {1},
    object(),
    int,
    "\ud800",
    "a\x00",
    "a" * 1_000_000,
    Evil(),
    OfEvilKind(),
    OfEvilKind,
    EvilString("a"),
    EvilInteger(1),
    EvilInteger(2**70),
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_value(text: str) -> None:
    compiled = compile_filter(text)
    for x in VALUES:
        for y in (1, "a", True, x):
            assert_harmless(compiled.text, {"x": x, "y": y})
            assert_harmless(compiled.text, {"y": x})


@pytest.mark.parametrize("text", TEXTS)
def test_any_mapping(text: str) -> None:
    assert_harmless(text, EvilDict(x=1, y=1))
    assert_harmless(text, {EvilKey("x"): 1, "y": 1})
    assert_harmless(text, {1: 2, None: 3, ("x",): 4})  # type: ignore[dict-item]
    assert_harmless(text, defaultdict(Evil, y=1))


def assert_harmless(text: str, properties: dict[str, Any]) -> None:
    compiled = compile_filter(text)
    matches = compiled.matches(properties)
    explanation = compiled.explain(properties)
    assert matches is (explanation.value is True)
    assert str(explanation)
    if explanation.problem is None:
        assert compiled.evaluate(properties) is matches
        return
    with pytest.raises(FilterError):
        compiled.evaluate(properties)


class Region(StrEnum):
    EU = "EU"


class Level(IntEnum):
    HIGH = 3


def test_enumerations_count_as_what_they_hold() -> None:
    compiled = compile_filter('region == "EU" && level + 1 == 4')
    assert compiled.matches({"region": Region.EU, "level": Level.HIGH})
    assert compiled.evaluate({"region": Region.EU, "level": Level.HIGH})
    assert compile_filter("a == b").matches({"a": Region.EU, "b": "EU"})
    assert compile_filter('s < "b"').matches({"s": EvilString("a")})


def test_a_read_only_view_will_do() -> None:
    compiled = compile_filter("exists(a) && a == 1")
    assert compiled.matches(MappingProxyType({"a": 1}))
    assert not compiled.matches(MappingProxyType({"a": 2}))
    assert not compiled.matches(MappingProxyType({}))


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupting(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_filter("a == 1").matches(Interrupting())
