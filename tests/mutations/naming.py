"""Which shard a test is in, by the text of its file: nothing is imported for that."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from shards import FAST

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Named:
    """The tests below a folder, by their node ids without parameters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed = cache(self._parse)

    def shard_of(self, test: str) -> str | None:
        """The shard of a test; None: there is none of this name. The nearest mark counts."""
        file, *names = test.split("::")
        module = self._parsed(file)
        if module is None or not names:
            return None
        shard = next(_marks(_assigned(module.body)), FAST)
        body: Sequence[ast.stmt] = module.body
        for name in names:
            found = next((each for each in body if isinstance(each, Definition) and each.name == name), None)
            if found is None:
                return None
            shard = next(_marks(found.decorator_list), shard)
            body = found.body
        return shard

    def _parse(self, file: str) -> ast.Module | None:
        path = self._folder / file
        return ast.parse(path.read_text()) if path.exists() else None


def _assigned(body: Sequence[ast.stmt]) -> list[ast.expr]:
    """What a module says of all its tests."""
    return [
        each.value
        for each in body
        if isinstance(each, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in each.targets)
    ]


def _marks(expressions: Sequence[ast.expr]) -> Iterator[str]:
    """The shards of `pytest.mark.shard("…")`; what is said of single parameters or variants is for these alone."""
    for expression in expressions:
        several = expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression]
        for each in several:
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "shard":
                if each.keywords:
                    continue
                [argument] = each.args
                yield str(ast.literal_eval(argument))
