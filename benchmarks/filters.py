"""The filter language beside two others from PyPI, and the index over many filters.

Every expression is the same in the three languages but for the spelling of "and". Each figure is
the best of several rounds, so that what else the machine does counts as little as possible.
"""

import timeit
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

from milepost.filter import FilterIndex, compile_filter

__all__ = ["measure"]

_ONE = "amount >= 100"
_THREE = 'amount >= 100 && region == "EU" && priority < 5'
_MATCH = {"amount": 120, "region": "EU", "priority": 3}
_MISS = {"amount": 20, "region": "EU", "priority": 3}

_WORKS = [
    ("filter: one comparison", _ONE, _MATCH),
    ("filter: three comparisons", _THREE, _MATCH),
    ("filter: three comparisons, miss on the first", _THREE, _MISS),
]
_INDEXED = (10, 1_000, 10_000)
_NOT_INDEXED = 1_000
_MESSAGES = 1_000
_ROUNDS = 5
_SECONDS_A_ROUND = 0.2

Row = dict[str, Any]
Call = Callable[[], object]


def measure() -> list[Row]:
    """All figures of the filter language, as rows for the report."""
    return [*_evaluations(), *_compilations(), *_lookups(), *_changes()]


def _evaluations() -> list[Row]:
    rows = []
    for work, text, properties in _WORKS:
        for subject, prepare in _SUBJECTS.items():
            rows.append(_row(work, subject, _rate(prepare(text, properties))))
    return rows


def _milepost(text: str, properties: dict[str, Any]) -> Call:
    matches = compile_filter(text).matches
    return lambda: matches(properties)


def _cel(text: str, properties: dict[str, Any]) -> Call:
    celpy = _peer("celpy")
    environment = celpy.Environment(runner_class=celpy.CompiledRunner)
    program = environment.program(environment.compile(text))
    activation = celpy.json_to_cel(properties)
    return lambda: program.evaluate(activation)


def _rule_engine(text: str, properties: dict[str, Any]) -> Call:
    rule_engine = _peer("rule_engine")
    rule = rule_engine.Rule(text.replace("&&", "and"))
    return lambda: rule.matches(properties)


def _peer(module: str) -> Any:
    """A module whose types are not checked, since it need not be installed to check these."""
    return import_module(module)


_SUBJECTS: dict[str, Callable[[str, dict[str, Any]], Call]] = {
    "milepost": _milepost,
    "cel-python": _cel,
    "rule-engine": _rule_engine,
}


def _compilations() -> list[Row]:
    celpy, rule_engine = _peer("celpy"), _peer("rule_engine")
    environment = celpy.Environment(runner_class=celpy.CompiledRunner)
    rule = _THREE.replace("&&", "and")
    work = "filter: compile three comparisons"
    return [
        _row(work, "milepost", _rate(_compile_a_new_shape())),
        _row(work, "cel-python", _rate(lambda: environment.program(environment.compile(_THREE)))),
        _row(work, "rule-engine", _rate(lambda: rule_engine.Rule(rule))),
        _row(
            "filter: compile three comparisons, shape known",
            "milepost",
            _rate(lambda: compile_filter(_THREE)),
        ),
    ]


def _compile_a_new_shape() -> Call:
    from milepost.filter import compiler

    def compile_anew() -> None:
        compiler._maker.cache_clear()
        compile_filter(_THREE)

    return compile_anew


def _lookups() -> list[Row]:
    rows = []
    for count in _INDEXED:
        rate = _lookup_rate(_equalities(count), customers=count)
        rows.append(_row(f"filter: index of {count:,} equalities, look-up", "milepost", rate))
    index = _equalities(_INDEXED[-1])
    for number in range(_NOT_INDEXED):
        index.add(compile_filter(f"amount > {1_000 + number}"), -1, number)
    work = f"filter: index of {_INDEXED[-1]:,} equalities and {_NOT_INDEXED:,} ranges"
    rows.append(_row(f"{work}, look-up", "milepost", _lookup_rate(index, customers=_INDEXED[-1])))
    ranges: FilterIndex[int] = FilterIndex()
    for number in range(_NOT_INDEXED):
        ranges.add(compile_filter(f"amount > {1_000 + number}"), 0, number)
    work = f"filter: index of {_NOT_INDEXED:,} ranges that all miss, look-up"
    rows.append(_row(work, "milepost", _lookup_rate(ranges, customers=10)))
    return rows


def _equalities(count: int) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for number in range(count):
        index.add(compile_filter(f"customer == {number}"), 0, number)
    return index


def _lookup_rate(index: FilterIndex[int], customers: int) -> float:
    random = Random(1)
    messages = [{**_MATCH, "customer": random.randrange(customers)} for _ in range(_MESSAGES)]

    def look_up_all() -> None:
        for message in messages:
            index.first(message)

    return _rate(look_up_all) * len(messages)


def _changes() -> list[Row]:
    """Adding filters to an index and taking them out again, in another order."""
    filters = [compile_filter(f"customer == {number}") for number in range(_INDEXED[-1])]
    order = Random(1).sample(range(len(filters)), len(filters))

    def add_and_remove_all() -> None:
        index: FilterIndex[int] = FilterIndex()
        handles = [index.add(each, 0, number) for number, each in enumerate(filters)]
        for number in order:
            index.remove(handles[number])

    rate = _rate(add_and_remove_all) * len(filters)
    return [_row(f"filter: index of {len(filters):,}, add and remove", "milepost", rate)]


def _rate(call: Call) -> float:
    """Calls a second, in the best round."""
    timer = timeit.Timer("call()", globals={"call": call})
    number = 1
    while (seconds := timer.timeit(number)) < _SECONDS_A_ROUND:
        number = max(number + 1, int(number * min(10, 1.2 * _SECONDS_A_ROUND / seconds)))
    return number / min(seconds, *timer.repeat(_ROUNDS - 1, number))


def _row(work: str, subject: str, value: float) -> Row:
    return {"work": work, "subject": subject, "value": value, "unit": "1/s"}
