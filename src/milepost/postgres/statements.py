"""Named SQL statements: `-- name: …` begins each in the files of a package's `queries`. Loaded once, for one
schema."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import LiteralString

from psycopg import sql


@cache
def _statement_texts(package: str) -> dict[str, str]:
    """The statements of a package by name, without their comments."""
    found: dict[str, str] = {}
    for path in (files(package) / "queries").iterdir():
        if not path.name.endswith(".sql"):
            continue
        for section in path.read_text().split("-- name: ")[1:]:
            name, *lines = section.splitlines()
            if name in found:
                raise ValueError(f"{package} has two statements called {name}")
            found[name] = "\n".join(line for line in lines if not line.startswith("--"))
    return found


def in_schema(text: str, schema: str) -> str:
    """The text with `:"schema"` as the schema's identifier and `:'schema'` as its name, as psql would."""
    identifier = sql.Identifier(schema).as_string(None)
    literal = sql.Literal(schema).as_string(None)
    return text.replace(':"schema"', identifier).replace(":'schema'", literal)


def array_literal(values: Iterable[int | str]) -> str:
    """An array of plain words as PostgreSQL writes it: drivers take longer, and do not agree on how."""
    return "{" + ",".join(map(str, values)) + "}"


class Statements:
    """The statements of a package, in its `queries`, for one schema."""

    def __init__(self, schema: str, package: str) -> None:
        self.schema = schema
        self._package = package
        self._loaded: dict[tuple[str, ...], LiteralString] = {}

    def get(self, name: str, **parts: LiteralString) -> LiteralString:
        """The statement called `name`; `parts` fill its `{{…}}`, each with text of this program's own.

        `{{conditions}}` are those that all readers of the log share, unless they are given.
        """
        key = (name, *parts.values())
        if key not in self._loaded:
            text = _statement_texts(self._package)[name]
            for part, value in parts.items():
                text = text.replace("{{" + part + "}}", value.strip())
            if "{{conditions}}" in text:
                text = text.replace("{{conditions}}", _statement_texts(self._package)["conditions"].strip())
            self._loaded[key] = in_schema(text, self.schema)
        return self._loaded[key]
