"""The language against cases that were written without knowledge of this implementation."""

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.filter import FilterError, compile_filter

CASES = [
    json.loads(line) for line in Path(__file__).with_name("conformance.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=[case["expr"][:40] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    assert outcome(case["expr"], case["props"]) == case["expect"]


def outcome(text: str, properties: dict[str, Any]) -> bool | str:
    try:
        return compile_filter(text).evaluate(properties)
    except FilterError as error:
        return error.kind
