"""From the tree of a filter to a Python function.

The generated source is made of numbered variables and of this module's own words. The names and the
constants of a filter reach it as arguments, so no text of a filter can become code, and filters of
the same shape share one code object.

The function decides by itself only where nothing can be wrong: each value has been found to be
exactly of the type that its operator takes. Everything else it leaves to a closer look, which knows
all the rules and all the errors.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, cast

from milepost.filter.tree import (
    Arithmetic,
    Boolean,
    Comparison,
    Exists,
    Integer,
    Junction,
    Negative,
    Node,
    Not,
    Property,
    String,
)
from milepost.filter.values import Kind
from milepost.names import MAX_INTEGER, MIN_INTEGER

__all__ = ["Decision", "compile_tree"]

Decision: TypeAlias = Callable[[Mapping[str, object]], bool]
"""Says whether a message's properties match."""

_CACHED_SHAPES = 1024
_MAX_NESTED_BLOCKS = 40  # Python refuses source that is indented by more than 100 levels.
_NAMES: dict[str, Any] = {
    "__builtins__": {},
    **{known.__name__: known for known in (type, int, str, bool, KeyError, Exception)},
}
_TYPES = {Kind.INTEGER: "int", Kind.STRING: "str", Kind.BOOLEAN: "bool"}
_IN_RANGE = f"{MIN_INTEGER} <= {{0}} <= {MAX_INTEGER}"
# Python's division rounds down, this language's towards zero.
_ARITHMETIC = {
    "+": "{0} + {1}",
    "-": "{0} - {1}",
    "*": "{0} * {1}",
    "/": "{0} // {1} if ({0} >= 0) == ({1} > 0) else -(-{0} // {1})",
    "%": "{0} % {1} if ({0} >= 0) == ({1} > 0) else -(-{0} % {1})",
}
_HEAD = """\
def make(lenient, look_closer{arguments}):
"""
_TAIL = """\
 def decide(p):
  while True:
   try:
{body}
   except KeyError:
    if lenient:
     return False
    break
   except Exception:
    break
  return look_closer(p)
 return decide
"""


def compile_tree(tree: Node) -> Callable[[bool, Decision], Decision]:
    """Compiles a tree that has been checked.

    What comes back takes two arguments: whether a missing property is just a non-match, and what
    takes the closer look. Called twice, it makes two functions of the same code.
    """
    program = _Program()
    body = _Body(program, depth=4, doubt="break")
    body.decide(tree)
    arguments = "".join(f", {name}" for name in program.constants.values())
    source = "".join([_HEAD.format(arguments=arguments), *program.parts, _TAIL.format(body=body.source())])
    make = _maker(source)
    return lambda lenient, look_closer: cast(Decision, make(lenient, look_closer, *program.constants))


@lru_cache(maxsize=_CACHED_SHAPES)
def _maker(source: str) -> Callable[..., Any]:
    names = dict(_NAMES)
    exec(compile(source, "<filter>", "exec"), names)  # noqa: S102
    return cast(Callable[..., Any], names["make"])


class _Program:
    """What the functions made for one filter have in common."""

    def __init__(self) -> None:
        self.constants: dict[int | str, str] = {}
        self.parts: list[str] = []
        self._variables = 0

    def constant(self, value: int | str) -> str:
        return self.constants.setdefault(value, f"k{len(self.constants)}")

    def variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def add_part(self, body: "_Body") -> str:
        name = f"part{len(self.parts)}"
        self.parts.append(f" def {name}(p):\n{body.source()}\n")
        return name


class _Body:
    """The lines of one function, and what is known where the next of them goes."""

    def __init__(self, program: _Program, depth: int, doubt: str) -> None:
        self._program = program
        self._depth = depth
        self._doubt = doubt
        self._lines: list[str] = []
        self._loaded: dict[str, str] = {}
        self._known: dict[str, Kind] = {}

    def source(self) -> str:
        return "\n".join(self._lines)

    def decide(self, node: Node) -> None:
        """Lines that return the value of a node as soon as it is decided."""
        while isinstance(node, Junction):
            for operand in node.operands[:-1]:
                code = self._boolean(operand)
                self._line(f"if {code}: return True" if node.decisive else f"if not {code}: return False")
            node = node.operands[-1]
        self._line(f"return {self._boolean(node)}")

    def _value(self, node: Node) -> str:
        """Code without side effects for the value of a node, after the lines that it needs."""
        match node:
            case Boolean():
                return str(node.value)
            case Integer() | String():
                return self._program.constant(node.value)
            case Property():
                return self._load(node.name)
            case Exists():
                return f"{self._program.constant(node.name)} in p"
            case Not():
                code = self._value(node.operand)
                self._demand(node.operand, code, Kind.BOOLEAN)
                return f"not {code}"
            case Negative():
                code = self._value(node.operand)
                self._demand(node.operand, code, Kind.INTEGER)
                return self._integer(f"-{code}")
            case Arithmetic():
                left, right = self._value(node.left), self._value(node.right)
                self._demand(node.left, left, Kind.INTEGER)
                self._demand(node.right, right, Kind.INTEGER)
                return self._integer(_ARITHMETIC[node.operator].format(left, right))
            case Comparison():
                left = self._named(self._value(node.left))
                right = self._named(self._value(node.right))
                self._demand_comparable(node, left, right)
                return f"{left} {node.operator} {right}"
            case Junction():
                return self._junction(node)

    def _boolean(self, node: Node) -> str:
        code = self._value(node)
        self._demand(node, code, Kind.BOOLEAN)
        return code

    def _junction(self, node: Junction) -> str:
        if self._depth > _MAX_NESTED_BLOCKS:
            return self._apart(node)
        first, *rest = node.operands
        result = self._assigned(self._boolean(first))
        outside = self._loaded.copy(), self._known.copy()
        for operand in rest:
            self._line(f"if not {result}:" if node.decisive else f"if {result}:")
            self._depth += 1
            self._line(f"{result} = {self._boolean(operand)}")
            self._depth -= 1
        self._loaded, self._known = outside
        return result

    def _apart(self, node: Junction) -> str:
        body = _Body(self._program, depth=2, doubt="return None")
        body.decide(node)
        result = self._assigned(f"{self._program.add_part(body)}(p)")
        self._line(f"if {result} is None: {self._doubt}")
        return result

    def _load(self, name: str) -> str:
        if name not in self._loaded:
            self._loaded[name] = self._assigned(f"p[{self._program.constant(name)}]")
        return self._loaded[name]

    def _integer(self, code: str) -> str:
        result = self._assigned(code)
        self._line(f"if not {_IN_RANGE.format(result)}: {self._doubt}")
        return result

    def _demand(self, node: Node, code: str, kind: Kind) -> None:
        if kind in (node.kind, self._known.get(code)):
            return
        condition = f"type({code}) is not {_TYPES[kind]}"
        if kind is Kind.INTEGER:
            condition += f" or not {_IN_RANGE.format(code)}"
        self._line(f"if {condition}: {self._doubt}")
        self._known[code] = kind

    def _demand_comparable(self, node: Comparison, left: str, right: str) -> None:
        kind = node.left.kind or node.right.kind or self._known.get(left) or self._known.get(right)
        if kind is None:
            self._demand_same(left, right, ordered=node.ordered)
        elif kind is Kind.BOOLEAN and node.ordered:
            self._line(f"if True: {self._doubt}")
        else:
            self._demand(node.left, left, kind)
            self._demand(node.right, right, kind)

    def _demand_same(self, left: str, right: str, *, ordered: bool) -> None:
        kind = self._assigned(f"type({left})")
        in_range = f"{_IN_RANGE.format(left)} and {_IN_RANGE.format(right)}"
        others = f"{kind} is not str" if ordered else f"{kind} is not str and {kind} is not bool"
        self._line(f"if {kind} is not type({right}): {self._doubt}")
        self._line(f"if {others} and ({kind} is not int or not ({in_range})): {self._doubt}")

    def _named(self, code: str) -> str:
        return code if code.isidentifier() else self._assigned(code)

    def _assigned(self, code: str) -> str:
        variable = self._program.variable()
        self._line(f"{variable} = {code}")
        return variable

    def _line(self, code: str) -> None:
        self._lines.append(" " * self._depth + code)
