"""Count what makes the source hard to enter: files, lines, full folders, names with two meanings, bare numbers.

    python tools/house.py            # the counts
    python tools/house.py --list     # ... and each class name used twice and each constant without a unit

A constant is a number, or a few of them, under an upper-case name at the top of a module or class. It says its
unit when its name has one of UNITS, or counts things: a word of it is a plural.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "milepost"

UNITS = frozenset(
    "SECONDS MINUTES HOURS DAYS BYTES KIB MIB CHARACTERS RATIO SHARE FACTOR PERCENT PORT STATUS CODE NUMBER "
    "VERSION DEPTH DIGITS BITS KEY INDEX TIME DATE".split()
)
"""Words that say what a number measures, or that it measures nothing."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Yield each Python file of the source, relative to it, with its tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text())


def classes_used_twice() -> dict[str, list[str]]:
    """Return the public names that several modules give to a class, with their modules."""
    found = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def constants_without_unit() -> list[str]:
    """Return `file:line name` of each number whose name does not say what it counts or measures."""
    found = []
    for path, tree in modules():
        bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
        for name, value, line in (constant for body in bodies for constant in _constants(body)):
            if _is_number(value) and not says_unit(name):
                found.append(f"{path}:{line} {name}")
    return found


def says_unit(name: str) -> bool:
    """True if a constant's name has a unit, or a plural of what is counted."""
    words = name.strip("_").split("_")
    return any(word in UNITS or (len(word) > 3 and word.endswith("S") and word != "ACCESS") for word in words)


def _constants(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr, int]]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value) | ast.AnnAssign(
                target=ast.Name(name), value=ast.expr() as value
            ) if name.isupper():
                yield name, value, node.lineno


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(bool()):
            return False
        case ast.Constant(int() | float()):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) or _is_number(right)
        case ast.Tuple(elts=[_, *_] as parts):
            return all(_is_number(part) for part in parts)
        case ast.Call(func=ast.Name("timedelta")):
            return True
        case _:
            return False


def main() -> None:
    """Print the counts."""
    python, sql = list(SOURCE.rglob("*.py")), list(SOURCE.rglob("*.sql"))
    folders = Counter(path.parent.relative_to(SOURCE) for path in (*python, *sql))
    [(fullest, most)] = folders.most_common(1)
    twice, bare = classes_used_twice(), constants_without_unit()
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
        for name, paths in twice.items():
            sys.stdout.write(f"{name}: {', '.join(paths)}\n")
        sys.stdout.write("".join(f"{line}\n" for line in bare))


if __name__ == "__main__":
    main()
