"""An index finds what trying the filters one by one would find."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from filter import naive
from filter.amounts import AMOUNTS, checked, examples
from filter.expressions import NAMES, conditions, messages, strange_messages, write
from milepost.filter import Filter, FilterIndex, Handle, compile_filter
from milepost.filter.demand import Equality, demand

equalities = st.sampled_from(
    [f"{name} == {text}" for name in NAMES for text in ("0", "1", "true", "false", '"a"', '"1"')]
)
texts = st.one_of(
    equalities,
    st.lists(equalities, min_size=2, max_size=3).map(" && ".join),
    st.lists(equalities, min_size=2, max_size=3).map(" || ".join),
    st.builds(
        lambda expression, seed: write(expression, Random(seed)),
        conditions.filter(lambda expression: not naive.is_refused(expression)),
        st.integers(0, 2**32),
    ),
)
likely_messages = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from([0, 1, True, False, "a", "1", 1.0, None])
)


class AnyOrder(RuleBasedStateMachine):
    """Adds, removes and looks up in any order, beside a list."""

    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.index: FilterIndex[int] = FilterIndex()
        self.model: list[tuple[int, int, Filter | None]] = []
        self.arrivals = 0

    @rule(
        target=handles,
        text=st.none() | texts,
        priority=st.integers(-1, 1),
        copies=st.integers(1, 3),
    )
    def add(self, text: str | None, priority: int, copies: int) -> list[tuple[int, Handle[int]]]:
        added = []
        for _ in range(copies):
            self.arrivals += 1
            compiled = None if text is None else compile_filter(text)
            added.append((self.arrivals, self.index.add(compiled, priority, self.arrivals)))
            self.model.append((-priority, self.arrivals, compiled))
        return added

    @rule(added=consumes(handles))
    def remove(self, added: list[tuple[int, Handle[int]]]) -> None:
        for arrival, handle in added:
            self.index.remove(handle)
            self.model = [each for each in self.model if each[1] != arrival]

    @rule(properties=likely_messages | messages | strange_messages)
    def look_up(self, properties: dict[str, Any]) -> None:
        expected = [
            arrival
            for _, arrival, compiled in sorted(self.model, key=lambda each: each[:2])
            if compiled is None or compiled.matches(properties)
        ]
        assert self.index.all(properties) == expected
        assert self.index.first(properties) == (expected[0] if expected else None)

    @invariant()
    def has_the_length_of_the_list(self) -> None:
        assert len(self.index) == len(self.model)


@AMOUNTS
def test_any_order(amount: str) -> None:
    chosen = examples(amount, few=12, many=60)
    run_state_machine_as_test(AnyOrder, settings=settings(chosen, stateful_step_count=25))


@checked(
    st.lists(st.tuples(texts, st.integers(-2, 2)), max_size=30),
    st.lists(likely_messages | messages, min_size=1, max_size=10),
    few=30,
    many=150,
)
def test_many_at_once(filters: list[tuple[str, int]], properties: list[dict[str, Any]]) -> None:
    index: FilterIndex[int] = FilterIndex()
    compiled = [(compile_filter(text), priority) for text, priority in filters]
    for number, (each, priority) in enumerate(compiled):
        index.add(each, priority, number)
    order = sorted(range(len(compiled)), key=lambda number: -compiled[number][1])
    for message in properties:
        expected = [number for number in order if compiled[number][0].matches(message)]
        assert index.all(message) == expected
        assert index.first(message) == (expected[0] if expected else None)


def test_the_priority_decides_then_who_came_first() -> None:
    index: FilterIndex[str] = FilterIndex()
    index.add(compile_filter("a >= 0"), 5, "low")
    high = index.add(compile_filter("a == 0"), 10, "high")
    index.add(compile_filter("a == 0"), 10, "high, later")
    index.add(None, 0, "rest")
    index.add(None, 20, "everything")
    assert index.all({"a": 0}) == ["everything", "high", "high, later", "low", "rest"]
    index.remove(high)
    index.add(compile_filter("a == 0"), 10, "high, again")
    assert index.all({"a": 0})[1:3] == ["high, later", "high, again"]
    assert index.all({"b": 0}) == ["everything", "rest"]


def test_an_item_put_back_with_its_arrival_keeps_its_place() -> None:
    index: FilterIndex[str] = FilterIndex()
    every = compile_filter("a == 0")
    handles = [index.add(every, 0, str(number), arrival=(number, 0)) for number in range(3)]
    index.add(None, 0, "one and a half", arrival=(1, 1))
    index.remove(handles[1])
    assert index.all({"a": 0}) == ["0", "one and a half", "2"]
    index.add(every, 0, "1", arrival=(1, 0))
    assert index.all({"a": 0}) == ["0", "1", "one and a half", "2"]


def test_of_items_with_one_arrival_the_one_added_first_is_first() -> None:
    index: FilterIndex[str] = FilterIndex()
    first = index.add(compile_filter("a == 0"), 0, "first", arrival=(1,))
    index.add(compile_filter("b == 0"), 0, "second", arrival=(1,))
    index.add(None, 0, "third", arrival=(1,))
    assert index.all({"b": 0, "a": 0}) == ["first", "second", "third"]
    index.remove(first)
    assert index.all({"b": 0, "a": 0}) == ["second", "third"]


def test_true_is_not_one() -> None:
    index: FilterIndex[str] = FilterIndex()
    index.add(compile_filter("a == 1"), 0, "one")
    index.add(compile_filter("a == true"), 0, "true")
    index.add(compile_filter("!a"), 0, "false")
    index.add(compile_filter("a == 0"), 0, "zero")
    index.add(compile_filter('a == "1"'), 0, "string")
    values: list[object] = [1, True, False, 0, "1", 1.0, None, []]
    found = [index.all({"a": value}) for value in values]
    assert found == [["one"], ["true"], ["false"], ["zero"], ["string"], [], [], []]


def test_a_handle_is_good_for_one_removal_from_its_own_index() -> None:
    index: FilterIndex[int] = FilterIndex()
    for text in ("a == 1", "a > 1"):
        handle = index.add(compile_filter(text), 0, 1)
        with pytest.raises(ValueError, match="not, or no longer"):
            FilterIndex[int]().remove(handle)
        index.remove(handle)
        with pytest.raises(ValueError, match="not, or no longer"):
            index.remove(handle)
    assert len(index) == 0


def test_nothing_is_left_behind() -> None:
    index: FilterIndex[int] = FilterIndex()
    texts = ["a == 1", "a == 1 || b == 2", "c", "d > 1", "a == 1 && e == 2"]
    handles = [index.add(compile_filter(text), 0, 1) for text in texts]
    for handle in handles:
        index.remove(handle)
    assert not index._tables
    assert not index._rest
    assert not index._handles


def tried(index: FilterIndex[int], properties: dict[str, Any]) -> int:
    return len(list(index._candidates(properties)))


equalities_of_many = pytest.mark.parametrize(
    "text",
    [
        "customer == {0}",
        "{0} == customer",
        'region == "EU" && customer == {0}',
        "customer == {0} && amount > 100",
        "active && (customer == {0} || customer == -{0} - 1 && amount == {0})",
        "customer == {0} || other == {0}",
        'region == "EU" && customer == {0} || active && (region == "UK" && other == {0})',
        "!(customer != {0} || amount < 100)",
    ],
)


@equalities_of_many
def test_of_many_equalities_few_are_tried(text: str) -> None:
    check_few_are_tried(text, 200)


@pytest.mark.shard("large")
@equalities_of_many
def test_of_ten_thousand_equalities_few_are_tried(text: str) -> None:
    check_few_are_tried(text, 10_000)


def check_few_are_tried(text: str, count: int) -> None:
    index: FilterIndex[int] = FilterIndex()
    for number in range(count):
        index.add(compile_filter(text.format(number)), 0, number)
    properties = {"region": "EU", "customer": 7, "amount": 200, "active": True}
    assert index.first(properties) == 7
    assert tried(index, properties) <= 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a == 1", {("a", 1)}),
        ('"x" = a', {("a", "x")}),
        ("a", {("a", True)}),
        ("!a", {("a", False)}),
        ("a != true", {("a", False)}),
        ("!(a != 1)", {("a", 1)}),
        ("a == 1 && b == 2", {("a", 1)}),
        ("(a == 1 || a == 2) && b == 2", {("b", 2)}),
        ("a > 1 && b == 2", {("b", 2)}),
        ("a == 1 || b == 2", {("a", 1), ("b", 2)}),
        ("!(a != 1 && b != 2)", {("a", 1), ("b", 2)}),
        ("!(a != 1 || b != 2)", {("a", 1)}),
        ("a == 1 || b > 2", set()),
        ("a != 1", set()),
        ("a > 1", set()),
        ("a == b", set()),
        ("exists(a)", set()),
        ("true", set()),
        ("a + 1 == 2", set()),
    ],
)
def test_what_a_filter_demands(text: str, expected: set[tuple[str, Any]]) -> None:
    demanded = demand(compile_filter(text).tree, cost=len)
    assert demanded == {Equality(name, type(value), value) for name, value in expected}


def test_the_conformance_cases_in_one_index() -> None:
    lines = Path(__file__).with_name("conformance.jsonl").read_text("utf-8").splitlines()
    cases = [case for case in map(json.loads, lines) if isinstance(case["expect"], bool)]
    filters = [compile_filter(case["expr"]) for case in cases]
    index: FilterIndex[int] = FilterIndex()
    for number, each in enumerate(filters):
        index.add(each, 0, number)
    for case in cases:
        found = [number for number, each in enumerate(filters) if each.matches(case["props"])]
        assert index.all(case["props"]) == found
