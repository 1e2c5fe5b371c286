"""From the tokens of a filter to its tree."""

from typing import cast, get_args

from milepost.errors import FilterError
from milepost.filter import hints
from milepost.filter.problem import FilterProblem
from milepost.filter.scanner import Token, scan
from milepost.filter.tree import (
    Arithmetic,
    ArithmeticOperator,
    Boolean,
    Comparison,
    ComparisonOperator,
    Exists,
    Integer,
    Junction,
    JunctionOperator,
    Negative,
    Node,
    Not,
    Property,
    String,
)
from milepost.filter.values import is_integer
from milepost.names import MAX_INTEGER, MIN_INTEGER

__all__ = ["MAX_LEVELS", "MAX_OPERATORS", "PRECEDENCE", "UNARY_PRECEDENCE", "parse"]

MAX_OPERATORS = 256
"""The most operators in a filter. The sign of a number is none."""

MAX_LEVELS = 64
"""The deepest nesting: parentheses and the operators `!` and `-` before an operand count."""

_LEVELS = ("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%")
PRECEDENCE = {
    operator: precedence for precedence, operators in enumerate(_LEVELS, start=1) for operator in operators
}
"""How tightly each operator between two operands binds; all of them group from the left."""

UNARY_PRECEDENCE = len(_LEVELS) + 1


def parse(text: str) -> Node:
    """The tree of a text; raises `FilterError` of kind "syntax" or "too_complex"."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = scan(text)
        self._previous = Token("start", "", 0)
        self._token = next(self._tokens)
        self._operators = 0
        self._level = 0

    def parse(self) -> Node:
        tree = self._expression(1)
        if self._token.symbol != "end":
            raise self._not_an_operator("the end")
        return tree

    def _expression(self, minimum: int) -> Node:
        left = self._operand()
        while (precedence := PRECEDENCE.get(self._token.symbol, 0)) >= minimum:
            operator = self._operator()
            right = self._expression(precedence + 1)
            left = _joined(operator, left, right)
        return left

    def _operand(self) -> Node:
        """An operand with what stands before it; a loop, so that only parentheses recurse."""
        before = []
        while self._token.symbol in ("!", "-"):
            prefix = self._advance()
            if prefix.symbol == "-" and self._token.symbol == "integer":
                operand: Node = self._integer(prefix)
                break
            self._count(prefix)
            self._enter(prefix)
            before.append(prefix)
        else:
            operand = self._primary()
        self._level -= len(before)
        for prefix in reversed(before):
            operand = _prefixed(prefix, operand)
        return operand

    def _primary(self) -> Node:
        match self._token.symbol:
            case "integer":
                return self._integer()
            case "string":
                token = self._advance()
                return String(str(token.value), token.offset)
            case "boolean":
                token = self._advance()
                return Boolean(token.value is True, token.offset)
            case "name":
                return self._name()
            case "(":
                return self._parenthesised()
        raise self._not_a_value()

    def _integer(self, sign: Token | None = None) -> Integer:
        token = self._advance()
        start = sign or token
        value = -int(token.value) if sign else int(token.value)
        if not is_integer(value):
            summary = f"expected an integer from {MIN_INTEGER} to {MAX_INTEGER}"
            raise FilterProblem("syntax", start.offset, summary).error(self._text)
        return Integer(value, start.offset)

    def _name(self) -> Node:
        name = self._advance()
        if name.source == "exists" and self._token.symbol == "(":
            return self._exists(name)
        return Property(name.source, name.offset)

    def _exists(self, function: Token) -> Exists:
        self._advance()
        if self._token.symbol != "name":
            raise self._unexpected("the name of a property")
        name = self._advance()
        self._close('")"')
        return Exists(name.source, function.offset)

    def _parenthesised(self) -> Node:
        self._enter(self._advance())
        inner = self._expression(1)
        self._close('an operator or ")"')
        self._level -= 1
        return inner

    def _close(self, expected: str) -> None:
        if self._token.symbol != ")":
            raise self._unexpected(expected, self._operator_hint())
        self._advance()

    def _operator(self) -> Token:
        self._count(self._token)
        return self._advance()

    def _advance(self) -> Token:
        self._previous = self._token
        # Nothing asks for more after the end.
        self._token = next(self._tokens)
        return self._previous

    def _count(self, operator: Token) -> None:
        self._operators += 1
        if self._operators > MAX_OPERATORS:
            raise self._too_complex(operator, f"more than {MAX_OPERATORS} operators")

    def _enter(self, token: Token) -> None:
        self._level += 1
        if self._level > MAX_LEVELS:
            raise self._too_complex(token, f"more than {MAX_LEVELS} levels of nesting")

    def _too_complex(self, token: Token, summary: str) -> FilterError:
        return FilterProblem("too_complex", token.offset, summary).error(self._text)

    def _not_an_operator(self, otherwise: str) -> FilterError:
        return self._unexpected(f"an operator or {otherwise}", self._operator_hint())

    def _operator_hint(self) -> str | None:
        if self._previous.symbol == "name" and self._token.symbol == "(":
            return hints.call(self._previous.source)
        return hints.after_value(self._previous.source, self._token.source)

    def _not_a_value(self) -> FilterError:
        joined = PRECEDENCE.get(self._token.symbol) and self._previous.source + self._token.source
        return self._unexpected("a value", hints.after_operator(joined) if joined else None)

    def _unexpected(self, expected: str, hint: str | None = None) -> FilterError:
        summary = f"expected {expected}, found {self._token}"
        if self._token.symbol == "stray":
            hint = hints.stray(self._text, self._token.offset)
        return FilterProblem("syntax", self._token.offset, summary, hint).error(self._text)


def _prefixed(prefix: Token, operand: Node) -> Node:
    if prefix.symbol == "!":
        return Not(operand, prefix.offset)
    # -(5) is -5 with parentheses that change nothing.
    if isinstance(operand, Integer) and operand.value >= 0:
        return Integer(-operand.value, prefix.offset)
    return Negative(operand, prefix.offset)


def _joined(operator: Token, left: Node, right: Node) -> Node:
    symbol, offset = operator.symbol, operator.offset
    if symbol in get_args(JunctionOperator):
        junction = cast(JunctionOperator, symbol)
        return Junction(junction, (*_operands(junction, left), *_operands(junction, right)), offset)
    if symbol in get_args(ComparisonOperator):
        return Comparison(cast(ComparisonOperator, symbol), left, right, offset)
    return Arithmetic(cast(ArithmeticOperator, symbol), left, right, offset)


def _operands(operator: JunctionOperator, node: Node) -> tuple[Node, ...]:
    if isinstance(node, Junction) and node.operator == operator:
        return node.operands
    return (node,)
