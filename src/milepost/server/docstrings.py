"""What the sources say of classes and their fields: written once, and told to whoever reads the description."""

import ast
import inspect
import textwrap
from functools import cache


def summary(described: object) -> str:
    """The docstring of a class or function, one line a paragraph."""
    paragraphs = (inspect.getdoc(described) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@cache
def fields(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class, and of the classes it is made of."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("milepost"):
            found |= _own(each)
    return found


def _own(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    if not isinstance(tree, ast.ClassDef):
        return {}
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())  # type: ignore[attr-defined]
    return found


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
