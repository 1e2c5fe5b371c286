"""Each class name means one thing, and each constant says its unit: `tools/house.py` finds those that do not."""

import ast
import tomllib
from pathlib import Path

import pytest
from tools import house


def source_with(folder: Path, **modules: str) -> Path:
    """Write modules with these texts into a folder, and return it."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def is_number(expression: str) -> bool:
    return house._is_number(ast.parse(expression, mode="eval").body)


def test_no_class_name_is_used_twice() -> None:
    twice = house.classes_used_twice(house.SOURCE)
    assert not twice, "\n".join(f"class {name} in {' and '.join(places)}" for name, places in twice.items())


def test_each_constant_says_its_unit() -> None:
    bare = house.constants_without_unit(house.SOURCE)
    assert not bare, "constants whose names need a unit or a plural:\n" + "\n".join(bare)


def test_the_source_is_looked_at() -> None:
    assert len(house.python_modules(house.SOURCE)) > 100


def test_a_class_name_used_twice_is_found_with_file_and_line(tmp_path: Path) -> None:
    source = source_with(tmp_path, one="class Lane: ...\n", two="\n\nclass Lane: ...\nclass Board: ...\n")
    assert house.classes_used_twice(source) == {"Lane": ["one.py:1", "two.py:3"]}


def test_a_class_name_used_twice_in_one_file_is_found(tmp_path: Path) -> None:
    source = source_with(tmp_path, one="class Lane: ...\nclass Lane: ...\n")
    assert house.classes_used_twice(source) == {"Lane": ["one.py:1", "one.py:2"]}


def test_private_and_inner_classes_may_share_a_name(tmp_path: Path) -> None:
    text = "class _Row: ...\ndef f():\n    class Inner: ...\n"
    assert house.classes_used_twice(source_with(tmp_path, one=text, two=text)) == {}


def test_a_constant_without_unit_is_found_with_file_and_line(tmp_path: Path) -> None:
    source = source_with(tmp_path, one='"""Doc."""\n\nPATIENCE = 5.0\nPOLL: Final = 1\nPOLL_SECONDS = 1\n')
    assert house.constants_without_unit(source) == ["one.py:3 PATIENCE", "one.py:4 POLL"]


def test_constants_of_classes_are_looked_at(tmp_path: Path) -> None:
    source = source_with(tmp_path, one="class Lane:\n    WINDOW = 1000\n    size = 3\n")
    assert house.constants_without_unit(source) == ["one.py:2 WINDOW"]


def test_each_name_of_an_assignment_is_looked_at(tmp_path: Path) -> None:
    source = source_with(tmp_path, one="WIDTH, MAX_ROWS = 120, 24\nLOW = HIGH = 3\n")
    assert house.constants_without_unit(source) == ["one.py:1 WIDTH", "one.py:2 LOW", "one.py:2 HIGH"]


def test_what_is_no_constant_number_needs_no_unit(tmp_path: Path) -> None:
    source = source_with(tmp_path, one='NAME = "milepost"\nlimit = 3\nOPEN = True\nANY = -2\nPENDING: int\n')
    assert house.constants_without_unit(source) == []


@pytest.mark.parametrize(
    "name",
    [
        "POLL_SECONDS",
        "_POLL_SECONDS",
        "MAX_LANES",
        "MAX_ROWS_PER_PAGE",
        "PAGE_BYTES",
        "GROWTH_FACTOR",
        "DEFAULT_PORT",
    ],
)
def test_a_unit_or_a_plural_says_the_unit(name: str) -> None:
    assert house.says_unit(name)


@pytest.mark.parametrize("name", ["POLL", "PATIENCE", "MAX_LANE", "MAX_ACCESS", "PROGRESS", "AS", "BUS", "SECOND"])
def test_anything_else_does_not(name: str) -> None:
    assert not house.says_unit(name)


@pytest.mark.parametrize(
    "expression",
    [
        "5",
        "0.5",
        "-1",
        "2**20",
        "2 * POLL_SECONDS",
        "(0.1, 5.0)",
        "[1, 2]",
        "{1, 2}",
        "timedelta(seconds=5)",
        "-(2**63)",
    ],
)
def test_numbers(expression: str) -> None:
    assert is_number(expression)


@pytest.mark.parametrize(
    "expression",
    ["True", "None", '"5"', '"-" * 40', 'b"x" * 2', "()", '(1, "a")', "[]", "POLL_SECONDS", "{}"],
)
def test_no_numbers(expression: str) -> None:
    assert not is_number(expression)


@pytest.mark.parametrize("package", ["log", "progress"])
def test_a_contract_names_each_module_that_knows_no_driver(package: str) -> None:
    """A module that is added beside the implementation in PostgreSQL is added to the contract, too."""
    contracts = tomllib.loads((house.SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]
    named = {source for contract in contracts["contracts"] for source in contract.get("source_modules", ())}
    modules = {f"milepost.{package}.{path.stem}" for path in (house.SOURCE / package).glob("*.py")}
    assert modules - {f"milepost.{package}.__init__"} <= named
