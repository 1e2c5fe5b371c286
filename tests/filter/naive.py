"""A second evaluator, as plain as can be, over expressions as nested tuples.

("integer", 5)  ("string", "a")  ("boolean", True)  ("property", "x")  ("exists", "x")
("!", operand)  ("negative", operand)  ("==", left, right) and so on for every other operator
"""

from fractions import Fraction
from math import trunc
from typing import Any

Expression = tuple[Any, ...]

ARITHMETIC = ("+", "-", "*", "/", "%")
ORDER = ("<", "<=", ">", ">=")
EQUALITY = ("==", "!=")


class NaiveError(Exception):
    """The evaluation failed; the argument is the kind."""


def is_refused(expression: Expression) -> bool:
    """Whether the expression can be seen to be wrong without a message."""
    try:
        return static_type(expression) not in ("boolean", "unknown")
    except NaiveError:
        return True


def static_type(expression: Expression) -> str:
    symbol, *operands = expression
    if symbol in ("integer", "string", "boolean"):
        return str(symbol)
    if symbol == "property":
        return "unknown"
    if symbol == "exists":
        return "boolean"
    types = {static_type(operand) for operand in operands} - {"unknown"}
    if symbol in ("negative", *ARITHMETIC):
        allowed, result = {"integer"}, "integer"
    elif symbol in ("!", "&&", "||"):
        allowed, result = {"boolean"}, "boolean"
    elif symbol in ORDER:
        allowed, result = {"integer", "string"}, "boolean"
    else:
        allowed, result = {"integer", "string", "boolean"}, "boolean"
    if types - allowed or len(types) > 1:
        raise NaiveError("type")
    return result


def evaluate(expression: Expression, properties: dict[str, Any]) -> bool:
    """The value of the whole; raises NaiveError."""
    result = value(expression, properties)
    if type_of(result) != "boolean":
        raise NaiveError("type")
    return bool(result)


def value(expression: Expression, properties: dict[str, Any]) -> Any:
    symbol, *operands = expression
    if symbol in ("integer", "string", "boolean"):
        return operands[0]
    if symbol == "property":
        if operands[0] not in properties:
            raise NaiveError("name")
        if type_of(properties[operands[0]]) == "none":
            raise NaiveError("type")
        return properties[operands[0]]
    if symbol == "exists":
        return operands[0] in properties
    if symbol in ("&&", "||"):
        return junction(expression, properties)
    values = [value(operand, properties) for operand in operands]
    if symbol == "!":
        return not typed(values[0], "boolean")
    if symbol == "negative":
        return fitting(-typed(values[0], "integer"))
    if symbol in ARITHMETIC:
        return arithmetic(symbol, *[typed(each, "integer") for each in values])
    return comparison(symbol, *values)


def junction(expression: Expression, properties: dict[str, Any]) -> bool:
    symbol, left, right = expression
    decided = typed(value(left, properties), "boolean")
    if decided == (symbol == "||"):
        return bool(decided)
    return bool(typed(value(right, properties), "boolean"))


def arithmetic(symbol: str, left: int, right: int) -> int:
    if symbol == "+":
        return fitting(left + right)
    if symbol == "-":
        return fitting(left - right)
    if symbol == "*":
        return fitting(left * right)
    if right == 0:
        raise NaiveError("arithmetic")
    quotient = trunc(Fraction(left, right))
    return fitting(quotient if symbol == "/" else left - quotient * right)


def comparison(symbol: str, left: Any, right: Any) -> bool:
    if type_of(left) != type_of(right):
        raise NaiveError("type")
    if symbol in ORDER and type_of(left) == "boolean":
        raise NaiveError("type")
    if type_of(left) == "string":
        left, right = (each.encode(errors="surrogatepass") for each in (left, right))
    return bool(
        {
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[symbol]
    )


def type_of(thing: Any) -> str:
    if isinstance(thing, bool):
        return "boolean"
    if isinstance(thing, int) and thing.bit_length() < 64:
        return "integer"
    if thing == -(2**63) and isinstance(thing, int):
        return "integer"
    return "string" if isinstance(thing, str) else "none"


def typed(thing: Any, wanted: str) -> Any:
    if type_of(thing) != wanted:
        raise NaiveError("type")
    return thing


def fitting(number: int) -> int:
    if type_of(number) != "integer":
        raise NaiveError("arithmetic")
    return number
