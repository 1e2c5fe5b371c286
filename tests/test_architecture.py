"""Each name on the pages for contributors exists: files, packages, classes, methods, functions, SQL statements."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "milepost"
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./*-]+\.(?:py|sql|md|txt|toml)")
FOLDER = re.compile(r"(?:\w+/)+\w*")
CLASS = re.compile(r"[A-Z][a-z]\w*(?:\.\w+)?")
CLASS_IN_DIAGRAM = re.compile(r"\b[A-Z][a-z]+(?:\.\w+|(?:[A-Z][a-z]+)+(?:\.\w+)?)(?!\w)")
PARTICIPANT = re.compile(r"participant \w+ as ([A-Z]\w*)")
MODULE = re.compile(r"milepost(?:\.\w+)+")
NAMES_AND_FILE = re.compile(r"((?:`\w+` and )*`\w+`)(?: \(| in )`([^`]+\.py)`")
FUNCTION_AND_FILE = re.compile(r"(function|statement) `(\w+)` of `([^`]+)`")
SCHEMA_FUNCTION = re.compile(r"[fF]unctions? ((?:`\w+`(?:, | and )?)+) of the schema")


@cache
def members() -> dict[str, set[str]]:
    """Return what each class of the source defines, by the name of the class; what it inherits is included."""
    classes = {
        node.name: node
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }

    def of(node: ast.ClassDef) -> set[str]:
        bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        return {name for statement in node.body for name in defined(statement)}.union(*map(of, bases))

    return {name: of(node) for name, node in classes.items()}


def defined(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            yield name
        case ast.AnnAssign(target=ast.Name(name)):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def file_of(name: str, folder: Path = PACKAGE) -> Path | None:
    """Return the file or folder of a name: below the root, the source, or the folder that its line is about."""
    folders = PACKAGE.rglob("*/") if "*" in name else (ROOT, PACKAGE, folder)
    return next((found for each in folders for found in each.glob(name.rstrip("/"))), None)


def defines(path: Path, kind: str, name: str) -> bool:
    """Return True if a file defines a class, function or statement."""
    text = path.read_text()
    if path.suffix == ".py":
        return any(name in defined(statement) for statement in ast.parse(text).body)
    wanted = rf'^create function :"schema"\.{name}\(' if kind == "function" else rf"^-- name: {name}$"
    return re.search(wanted, text, re.MULTILINE) is not None


def is_class(name: str) -> bool:
    """Return True if the source has this class, and it this member."""
    owner, _, member = name.partition(".")
    return owner in members() and (not member or member in members()[owner])


def is_module(name: str) -> bool:
    """Return True for a module, a package, or something that one of them defines."""
    path = ROOT / "src" / name.replace(".", "/")
    if (path / "__init__.py").exists() or path.with_suffix(".py").exists():
        return True
    module, _, last = name.rpartition(".")
    path = ROOT / "src" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.exists() and defines(path, "class", last)


def unknown_names(text: str) -> list[str]:
    """Return each name on a page that the project does not have."""
    blocks = [written for kind, written in BLOCK.findall(text) if kind == "mermaid"]
    prose = BLOCK.sub("", text)
    return [*unknown_in_prose(prose), *unknown_pairs(prose), *unknown_in_diagrams(blocks)]


def unknown_in_prose(text: str) -> Iterator[str]:
    """Yield the files, folders, classes and modules that are named and not there."""
    top = {path.name for path in (*ROOT.iterdir(), *PACKAGE.iterdir()) if path.is_dir()}
    for line in text.splitlines():
        spans = SPAN.findall(line)
        folder = next((ROOT / span for span in spans if span.endswith("/") and (ROOT / span).is_dir()), PACKAGE)
        for span in spans:
            is_path = FILE.fullmatch(span) or (FOLDER.fullmatch(span) and span.split("/")[0] in top)
            if (
                (is_path and file_of(span, folder) is None)
                or (CLASS.fullmatch(span) and not is_class(span))
                or (MODULE.fullmatch(span) and not is_module(span))
            ):
                yield span


def unknown_pairs(text: str) -> Iterator[str]:
    """Yield what is said to be in a file and is not."""
    text = " ".join(text.split())
    for names, file in NAMES_AND_FILE.findall(text):
        if (path := file_of(file)) is not None:
            yield from (f"{name} in {file}" for name in SPAN.findall(names) if not defines(path, "class", name))
    for kind, name, file in FUNCTION_AND_FILE.findall(text):
        if (path := file_of(file)) is not None and not defines(path, kind, name):
            yield f"{kind} {name} of {file}"
    schema = "".join(path.read_text() for path in sorted((PACKAGE / "postgres" / "migrations").rglob("*.sql")))
    for names in SCHEMA_FUNCTION.findall(text):
        yield from (name for name in SPAN.findall(names) if f'create function :"schema".{name}(' not in schema)


def unknown_in_diagrams(blocks: list[str]) -> Iterator[str]:
    """Yield the classes in diagrams that are not there."""
    for block in blocks:
        names = {*CLASS_IN_DIAGRAM.findall(block), *PARTICIPANT.findall(block)} - {"PostgreSQL"}
        yield from sorted(name for name in names if not is_class(name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_name_on_the_page_exists(page: Path) -> None:
    assert unknown_names(page.read_text()) == []


def test_the_map_has_every_package() -> None:
    spans = {span.rstrip("/") for span in SPAN.findall(PAGES[0].read_text())}
    packages = {path.parent.relative_to(ROOT).as_posix() for path in PACKAGE.glob("*/**/__init__.py")}
    assert packages - spans == set()


@pytest.mark.parametrize(
    "wrong",
    [
        "`src/milepost/log/apender.py`",
        "`log/postgres/apender.py`",
        "| `src/milepost/log/` | has `apender.py` |",
        "`engine/handling/`",
        "`tests/no_such_file.py`",
        "`LaneReeder`",
        "`Lane.fil`",
        "`milepost.engine.lanes.no_such_module`",
        "`milepost.engine.lanes.reader.LaneReeder`",
        "`LaneReader` (`engine/lanes/balancer.py`)",
        "`LaneReader` in `engine/lanes/balancer.py`",
        "the function `write` of `postgres/migrations/001_milepost/2_progress.sql`",
        "the statement `append` of\n`log/postgres/queries/pages.sql`",
        "the functions `take` and `no_such_function` of the schema",
        "`no_such_function` and `failed_row` (`dispatch/retry.py`)",
        "```mermaid\nparticipant R as LaneReeder\n```",
        "```mermaid\nparticipant F as Feet\n```",
        "```mermaid\nA->>B: Lane.fil: messages\n```",
    ],
)
def test_a_name_that_does_not_exist_is_found(wrong: str) -> None:
    assert len(unknown_names(wrong)) == 1


@pytest.mark.parametrize(
    "right",
    [
        "`src/milepost/log/codec.py`",
        "`log/postgres/appender.py`",
        "| `src/milepost/log/` | has `codec.py` |",
        "`queries/*.sql` and `group/name`",
        "`LaneReader` (`engine/lanes/reader.py`) and `Lane.fill`",
        "`milepost.engine.lanes.reader.LaneReader`",
        "the function `write` of `postgres/migrations/001_milepost/1_log.sql`",
        "the statement `append` of `log/postgres/queries/append.sql`",
        "the functions `take` and `exchange` of the schema",
        "```mermaid\nparticipant R as LaneReader\nA->>B: Lane.fill: messages, with keys\n```",
    ],
)
def test_names_that_exist_are_let_pass(right: str) -> None:
    assert unknown_names(right) == []
