"""The options of a subscription: defaults, what is wrong with each, and what they mean to others."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from engine.shop import subscriptions
from milepost.dispatch import Retry
from milepost.engine.declare.declaration import Checkpoint, Declaration
from milepost.engine.declare.order import BY_STREAM, NO_ORDER, by_property
from milepost.errors import FilterError
from milepost.filter import compile_filter


def declare(**options: Any) -> Declaration:
    return Declaration.of("invoices", options)


def test_the_defaults() -> None:
    made = declare()
    assert (made.category, made.stream, made.types, made.where) == (None, None, None, None)
    assert (made.start, made.ordered_by, made.lanes, made.concurrency) == ("beginning", BY_STREAM, None, None)
    assert (made.window, made.batch, made.retry, made.on_park) == (1000, None, Retry(), "block")
    assert (made.tracking, made.timeout, made.checkpoint, made.lease) == ("failures", 30, Checkpoint(), 30)
    assert made.isolation == "read committed"
    assert (made.stall_after, made.max_waiting, made.keep_done, made.renamed_from) == (1000, 100_000, None, None)


@pytest.mark.parametrize(
    ("option", "meant"),
    [("catgory", "category"), ("lane", "lanes"), ("order_by", "ordered_by"), ("wher", "where")],
)
def test_a_misspelt_option_is_corrected(option: str, meant: str) -> None:
    with pytest.raises(
        TypeError, match=f"^subscription 'invoices' has no option '{option}': did you mean '{meant}'"
    ):
        declare(**{option: 1})


def test_a_misspelt_option_of_a_checkpoint_is_corrected() -> None:
    with pytest.raises(TypeError, match="^Checkpoint has no option 'second': did you mean 'seconds'"):
        Checkpoint(second=1)  # type: ignore[call-arg]


def test_an_option_like_no_other_lists_all() -> None:
    with pytest.raises(TypeError, match="has no option 'zzz'; it has category, stream, types, where, start"):
        declare(zzz=1)
    with pytest.raises(TypeError, match="has no option 'name'"):
        declare(name="x")


WHOLE = [0, -1, 1.0, 1.5, "1", True, math.nan, [1], 10**5000 * -1]
SECONDS = [0, -1, math.nan, math.inf, "30", True, [30], 10**5000, None]

HOSTILE: dict[str, list[Any]] = {
    "category": [
        "",
        [],
        [""],
        5,
        [5],
        [[]],
        b"order",
        "a\0",
        "\ud800",
        "x" * 600,
        {"a": 1},
        "-",
        ["x"] * 2 + [None],
    ],
    "stream": ["", [], "-1", 5, "a\0", "x" * 600, [b"order-1"]],
    "types": ["", [], 5, "order.*x", "order.>.x", [">", 5], ["a" * 500 + f"{i}.*" for i in range(30)]],
    "where": [5, True, b"a > 1", ["a > 1"]],
    "start": ["", "end", "NOW", -1, 2**63, 1.5, True, None, datetime(2026, 1, 1), "2026-01-01"],  # noqa: DTZ001
    "paused": ["", "no", 0, 1, None, [True]],
    "ordered_by": ["streams", 5, by_property, "", True],
    "lanes": [*WHOLE, None, 1025],
    "concurrency": WHOLE,
    "window": [*WHOLE, None],
    "batch": [*WHOLE, 1001],
    "retry": [None, 3, "never", Retry, {}],
    "on_park": [None, "", "stop", True, ["block"]],
    "tracking": [None, "", "none", True, ["all"]],
    "isolation": [None, "", "read uncommitted", "READ COMMITTED", 3, ["serializable"]],
    "timeout": SECONDS,
    "checkpoint": [None, 0.2, Checkpoint, {}],
    "lease": [*SECONDS, 0.999],
    "stall_after": [*WHOLE, None],
    "max_waiting": [*WHOLE, None],
    "keep_done": [value for value in SECONDS if value is not None],
    "renamed_from": ["", 5, "a/b", "a\0", "\ud800", "x" * 600, b"a"],
}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        pytest.param(name, value, id=f"{name}-{number}")
        for name, values in HOSTILE.items()
        for number, value in enumerate(values)
    ],
)
def test_a_wrong_value_is_refused_by_its_option(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"(?s)^subscription 'invoices': {option}: .*wanted.*, not ") as refused:
        declare(**{option: value})
    assert len(str(refused.value)) < 1000


def test_every_option_has_hostile_values() -> None:
    assert {*HOSTILE, "name"} == set(Declaration.__dataclass_fields__)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lanes": 0}, "lanes: a whole number from 1 to 1,024 is wanted, not 0"),
        ({"timeout": 0}, "timeout: a number of seconds, more than 0, is wanted, not 0"),
        ({"lease": 0.5}, "lease: a number of seconds, at least 1, is wanted, not 0.5"),
        ({"on_park": "stop"}, 'on_park: "block" or "continue" is wanted, not \'stop\''),
        ({"on_park": "blok"}, 'on_park: "block" or "continue" is wanted (did you mean \'block\'?), not \'blok\''),
        ({"tracking": "al"}, 'tracking: "failures" or "all" is wanted (did you mean \'all\'?), not \'al\''),
        ({"start": "begining"}, 'start: "beginning", "now", a datetime or a position is wanted '
         "(did you mean 'beginning'?), not 'begining'"),
        ({"retry": 3}, "retry: Retry(…) is wanted, not 3"),
        ({"start": "end"}, 'start: "beginning", "now", a datetime or a position is wanted, not \'end\''),
        ({"category": []}, "category: a name or several are wanted (an empty list selects nothing: "
         "leave it out to select everything), not []"),
        ({"stream": "-1"}, "stream: a name or several are wanted ('-1' has no category: name it category-id), "
         "not '-1'"),
        ({"category": "a-b"}, "category: a name or several are wanted ('a-b': a category ends before the first "
         "dash: write category='a', or stream='a-b'), not 'a-b'"),
        ({"batch": 50, "window": 10}, "batch: at most the window of 10 is wanted, not 50"),
        ({"renamed_from": "invoices"}, "renamed_from: this is its name already"),
    ],
)  # fmt: skip
def test_what_is_wanted_instead(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared
        declare(**options)
    assert str(refused.value) == f"subscription 'invoices': {problem}"


@pytest.mark.parametrize("name", ["", "a/b", "/", "a\0b", "\ud800", "x" * 513, 5, None, b"a", ["a"]])
def test_a_name_that_cannot_be_stored_or_addressed_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="^subscription: a name .*wanted.*, not "):
        Declaration.of(name, {})


def test_a_function_in_place_of_the_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r'write @mp.subscription\("name", …\)'):
        Declaration.of(len, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "amount >", "amount ? 1"])
def test_a_filter_is_compiled_when_declared(text: str) -> None:
    with pytest.raises(FilterError) as alone:
        compile_filter(text)
    with pytest.raises(FilterError) as refused:
        declare(where=text)
    assert str(refused.value) == f"subscription 'invoices': where: {alone.value}"
    assert (refused.value.kind, refused.value.offset) == (alone.value.kind, alone.value.offset)


def test_a_stream_of_no_category_that_is_selected_is_refused() -> None:
    declare(category=["order", "refund"], stream=["payment-1", "refund-1"])
    with pytest.raises(ValueError, match="stream: 'payment-1' can never be of category 'order' or 'refund'"):
        declare(category=["order", "refund"], stream="payment-1")


@pytest.mark.parametrize("option", ["strategy", "max_consumers", "max_unrouted", "if_exists"])
def test_an_option_of_what_is_created_says_where_it_belongs(option: str) -> None:
    with pytest.raises(TypeError, match=rf"'invoices': {option} is for consumers, by mp\.create_subscription"):
        declare(**{option: 1})


def test_a_compiled_filter_will_do() -> None:
    assert declare(where=compile_filter("a>1")) == declare(where="a > 1")


@pytest.mark.parametrize("start", ["beginning", "now", 0, 2**63 - 1, datetime(2026, 1, 1, tzinfo=UTC)])
def test_where_it_may_start(start: Any) -> None:
    assert declare(start=start).start == start


@pytest.mark.parametrize(
    "options", [{"lanes": 1}, {"lanes": 1024}, {"lease": 1}, {"timeout": 0.001}, {"batch": 1000}]
)
def test_the_ends_of_a_range_belong_to_it(options: dict[str, Any]) -> None:
    declare(**options)


def test_what_it_selects_is_one_text() -> None:
    first = declare(category=["b", "a", "a"], types={"t.>", "s"}, where="x>1")
    again = declare(category=("a", "b"), types=["s", "t.>"], where="(x) > 1")
    assert first.selects() == again.selects()
    assert json.loads(first.selects()) == {
        "category": ["a", "b"],
        "stream": None,
        "types": ["s", "t.>"],
        "where": "x > 1",
    }
    assert first.selects() != declare(category="a").selects()


def test_only_types_that_are_handled_are_selected() -> None:
    made = declare(types=["order.*"])
    assert json.loads(made.selects({"order.placed", "payment.made"}))["types"] == ["order.placed"]
    assert made.selection({"order.placed", "payment.made"}).types is not None
    assert declare().selection().everything


def test_what_it_orders_by_is_one_text() -> None:
    assert (declare().orders, declare(ordered_by=by_property("a")).orders) == ("stream", "property a")


def test_what_it_means_to_a_lane() -> None:
    settings = declare(
        window=10, checkpoint=Checkpoint(messages=7), ordered_by=None, tracking="all", on_park="continue"
    ).dispatch_settings(NO_ORDER)
    assert (settings.window, settings.probation, settings.ordered) == (10, 17, False)
    assert (settings.track_all, settings.on_park, settings.timeout) == (True, "continue", None)
    assert declare().dispatch_settings(BY_STREAM).ordered
    assert declare(ordered_by=None).ordered_by == NO_ORDER


def test_a_name_is_declared_once() -> None:
    program = subscriptions()
    program.declare("invoices", {})
    with pytest.raises(ValueError, match="^subscription 'invoices' is declared already"):
        program.declare("invoices", {"lanes": 2})
