"""Pydantic models as payloads: stored by the names of their fields, whatever aliases they have.

A model may be dumped by one alias and validated by another, or by several. The names of its fields are the only
ones that both sides have. What others wrote by the aliases is read as well.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec


def is_model(cls: type) -> bool:
    """Return True for a class of Pydantic models, without importing Pydantic."""
    return hasattr(cls, "model_dump_json")


def json_of(model: Any) -> msgspec.Raw:
    """Return a model as JSON that `read_json` takes: by the names of its fields, without computed ones."""
    return msgspec.Raw(model.model_dump_json(by_alias=False, round_trip=True).encode())


def plain(model: Any) -> Any:
    """Return the same as values that JSON has."""
    return model.model_dump(mode="json", by_alias=False, round_trip=True)


def read_json(cls: Any, raw: str | bytes) -> Any:
    """Return the model of a JSON text; raises what Pydantic raises."""
    return cls.model_validate_json(raw, **_names(cls))


def read(cls: Any, value: Any) -> Any:
    """Return the model of a value that is not JSON, such as an instance; raises what Pydantic raises."""
    return cls.model_validate(value, **_names(cls))


@lru_cache(maxsize=10_000)
def _names(cls: Any) -> Mapping[str, bool]:
    """Return which names a class of models is read by; nothing where none of its fields has an alias."""
    clashes = list(_clashes(cls.__pydantic_core_schema__))
    if not clashes:
        return {}
    # Where an alias is also the name of another field, only names are unequivocal.
    return {"by_name": True, "by_alias": not any(clashes)}


def _clashes(schema: object) -> Iterator[bool]:
    """Yield for each field with an alias, also of models within, whether another field beside it has that name."""
    parts = [schema]
    while parts:
        match parts.pop():
            case Mapping() as part:
                fields = part.get("fields")
                if isinstance(fields, list):
                    fields = {
                        each["name"]: each for each in fields if isinstance(each, Mapping) and "name" in each
                    }
                if isinstance(fields, Mapping):
                    for name, field in fields.items():
                        if isinstance(field, Mapping) and (aliases := _aliases(field.get("validation_alias"))):
                            yield not aliases.isdisjoint(fields.keys() - {name})
                parts += part.values()
            case list() | tuple() as several:
                parts += several


def _aliases(alias: Any) -> set[str]:
    """Return the names in an alias: a text, a path, or a choice of paths."""
    if isinstance(alias, str):
        return {alias}
    paths = [each if isinstance(each, list) else [each] for each in alias or ()]
    return {path[0] for path in (paths if alias and isinstance(alias[0], list) else paths[:1])}
