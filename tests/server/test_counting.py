"""What is found out about JSON before it is parsed."""

import json
import random
from typing import Any

import pytest

from milepost.errors import TooLarge
from milepost.server.http.json_limits import check_counts, count_containers, json_depth


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def some(chance: random.Random, left: int) -> Any:
    text = "".join(chance.choice('[]{}"\\,ä ') for _ in range(chance.randrange(6)))
    match chance.randrange(5 if left else 3):
        case 0:
            return text
        case 1:
            return chance.randrange(100)
        case 2:
            return None
        case 3:
            return [some(chance, left - 1) for _ in range(chance.randrange(4))]
        case _:
            return {f"{text}{n}": some(chance, left - 1) for n in range(chance.randrange(4))}


def test_depth() -> None:
    chance = random.Random(23)
    for _ in range(2000):
        value = some(chance, 6)
        assert json_depth(json.dumps(value, ensure_ascii=chance.random() < 0.5).encode()) == depth(value), value


@pytest.mark.parametrize("text", [b"", b"[", b"]", b'"', b'"\\', b"]]]][[", b'{"a', b"\\\\\\"])
def test_what_is_no_json_does_no_harm(text: bytes) -> None:
    assert json_depth(text) <= count_containers(text)


def test_texts_that_end_with_a_backslash_are_not_passed_over() -> None:
    for text in ("a", "\\", '"', '\\"', "\\\\"):
        body = json.dumps([text] * 100).encode()
        with pytest.raises(TooLarge, match="more than 49 texts"):
            list(check_counts(body, containers=1, texts=49))
    list(check_counts(json.dumps(['"' * 1000] * 100).encode(), containers=1, texts=100))
    with pytest.raises(TooLarge, match="more than 0 arrays and objects"):
        list(check_counts(b"[1]", containers=0, texts=100))
