"""SQL in named statements: each in a file, loaded once."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import LiteralString

from psycopg import sql


@cache
def _text(package: str, name: str) -> str:
    lines = (files(package) / "queries" / f"{name}.sql").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def in_schema(text: str, schema: str) -> str:
    """The text with `:"schema"` as the schema's identifier and `:'schema'` as its name, as psql would."""
    identifier = sql.Identifier(schema).as_string(None)
    literal = sql.Literal(schema).as_string(None)
    return text.replace(':"schema"', identifier).replace(":'schema'", literal)


def as_array(values: Iterable[int | str]) -> str:
    """An array of plain words as PostgreSQL writes it: drivers take longer, and do not agree on how."""
    return "{" + ",".join(map(str, values)) + "}"


class Statements:
    """The statements of a package, in its `queries`, for one schema. Defaults to those of the log."""

    def __init__(self, schema: str, package: str = "milepost.log") -> None:
        self.schema = schema
        self._package = package
        self._loaded: dict[tuple[str, ...], LiteralString] = {}

    def get(self, name: str, **parts: LiteralString) -> LiteralString:
        """The statement called `name`; `parts` fill its `{{…}}`, each with text of this program's own.

        `{{conditions}}` are those that all readers of the log share, unless they are given.
        """
        key = (name, *parts.values())
        if key not in self._loaded:
            text = _text(self._package, name)
            for part, value in parts.items():
                text = text.replace("{{" + part + "}}", value.strip())
            if "{{conditions}}" in text:
                text = text.replace("{{conditions}}", _text(self._package, "conditions").strip())
            self._loaded[key] = in_schema(text, self.schema)
        return self._loaded[key]
