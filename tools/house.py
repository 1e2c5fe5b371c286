"""Count what makes the source hard to enter: files, lines, full folders, ambiguous class names, bare numbers.

    python tools/house.py            # the counts
    python tools/house.py --list     # ... and where each class name used twice and each constant without a unit is

A constant is a number, or a few of them, under an upper-case name at the top of a module or class. Its name says
the unit if one of its words is in UNITS, or is a plural: `MAX_LANES` counts lanes. `tests/test_house.py` keeps
both lists empty.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "milepost"

_TIMES = ("SECONDS", "MINUTES", "HOURS", "DAYS", "TIME", "DATE")
_SIZES = ("BYTES", "KIB", "MIB", "CHARACTERS", "DIGITS", "BITS", "DEPTH")
_BARE = ("RATIO", "SHARE", "FACTOR", "PERCENT", "NUMBER", "INTEGER", "VERSION", "PRECEDENCE", "KEY", "INDEX")
_CODES = ("PORT", "STATUS", "CODE")
UNITS = {*_TIMES, *_SIZES, *_BARE, *_CODES}
"""Words that say what a number measures, or that it measures nothing."""

PUBLIC = {"ANY", "NO_STREAM"}
"""Names of the public API that stand for a meaning. That each is a number is nobody's business."""


@cache
def python_modules(source: Path) -> Sequence[tuple[Path, ast.Module]]:
    """Return the path of each Python file below `source`, relative to it, and its syntax tree."""
    return [(path.relative_to(source), ast.parse(path.read_text())) for path in sorted(source.rglob("*.py"))]


def classes_used_twice(source: Path) -> dict[str, list[str]]:
    """Return each public class name that is defined more than once, with the `file:line` of each definition."""
    found = defaultdict(list)
    for path, tree in python_modules(source):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path}:{node.lineno}")
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def constants_without_unit(source: Path) -> list[str]:
    """Return `file:line name` of each constant whose name does not say what it counts or measures."""
    found = []
    for path, tree in python_modules(source):
        bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
        for name, value, line in (constant for body in bodies for constant in _constants(body)):
            if _is_number(value) and name not in PUBLIC and not says_unit(name):
                found.append(f"{path}:{line} {name}")
    return found


def says_unit(name: str) -> bool:
    """Return True if a word of a constant's name is a unit or a plural."""
    return any(word in UNITS or _is_plural(word) for word in name.strip("_").split("_"))


def _is_plural(word: str) -> bool:
    """Return True for ROWS and LANES, False for ACCESS. Three letters are too few to tell: BUS, GAS."""
    return len(word) > 3 and word.endswith("S") and not word.endswith("SS")


def _constants(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr, int]]:
    """Yield the name, value and line of each upper-case name that `body` assigns."""
    for node in body:
        match node:
            case ast.Assign(targets=targets, value=value):
                pairs = [pair for target in targets for pair in _names_and_values(target, value)]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [*_names_and_values(target, value)]
            case _:
                continue
        yield from ((name, value, node.lineno) for name, value in pairs if name.isupper())


def _names_and_values(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name of an assignment with its value: `WIDTH, HEIGHT = 4, 3` has two."""
    match target, value:
        case ast.Name(name), _:
            yield name, value
        case ast.Tuple(elts=names), ast.Tuple(elts=values):
            for each, of_it in zip(names, values, strict=False):
                yield from _names_and_values(each, of_it)


def _is_number(value: ast.expr) -> bool:
    """Return True for a number, a sum or product with one, a `timedelta`, and several of these."""
    match value:
        case ast.Constant(bool()):
            return False
        case ast.Constant(int() | float()):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return not (_is_text(left) or _is_text(right)) and (_is_number(left) or _is_number(right))
        case ast.Tuple(elts=[_, *_] as parts) | ast.List(elts=[_, *_] as parts) | ast.Set(elts=parts):
            return all(_is_number(part) for part in parts)
        case ast.Call(func=ast.Name("timedelta")):
            return True
        case _:
            return False


def _is_text(value: ast.expr) -> bool:
    """Return True for a string or bytes: `"-" * 40` is no number."""
    return isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str | bytes)
    )


def main() -> None:
    """Print the counts; with `--list`, what the last two of them count."""
    python, sql = list(SOURCE.rglob("*.py")), list(SOURCE.rglob("*.sql"))
    folders = Counter(path.parent.relative_to(SOURCE) for path in (*python, *sql))
    [(fullest, most)] = folders.most_common(1)
    twice, bare = classes_used_twice(SOURCE), constants_without_unit(SOURCE)
    counts = {
        "Python files": len(python),
        "Python lines": sum(len(path.read_text().splitlines()) for path in python),
        "SQL files": len(sql),
        "SQL lines": sum(len(path.read_text().splitlines()) for path in sql),
        f"files in the fullest folder ({fullest})": most,
        "class names used twice": len(twice),
        "constants without a unit": len(bare),
    }
    for what, count in counts.items():
        sys.stdout.write(f"{count:7,} {what}\n")
    if "--list" in sys.argv:
        for name, places in twice.items():
            sys.stdout.write(f"{name}: {', '.join(places)}\n")
        sys.stdout.write("".join(f"{line}\n" for line in bare))


if __name__ == "__main__":
    main()
