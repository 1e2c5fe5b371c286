"""Random expressions and messages, and the many ways to write an expression down."""

from random import Random
from typing import Any

from hypothesis import strategies as st

from filter.naive import ARITHMETIC, EQUALITY, ORDER, Expression

NAMES = ["a", "b", "c", "exists", "x.y", "andy", "true_"]
INTEGERS = [-(2**63), -(2**63) + 1, -7, -2, -1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1]
STRINGS = ["", "a", "b", "A", "1", "true", 'q"', "\\", "é", "\uffff", "\U00010000", "a\nb", "$v0"]
SPELLINGS = {"==": ["==", "="], "&&": ["&&", " and "], "||": ["||", " or "], "!": ["!", " not "]}
PRECEDENCES = [["||"], ["&&"], ["==", "!="], ["<", "<=", ">", ">="], ["+", "-"], ["*", "/", "%"]]
PRECEDENCE = {symbol: precedence for precedence, symbols in enumerate(PRECEDENCES) for symbol in symbols}

names = st.sampled_from(NAMES)
properties_ = st.tuples(st.just("property"), names)
integers = st.tuples(st.just("integer"), st.sampled_from(INTEGERS) | st.integers(-3, 3))
strings = st.tuples(st.just("string"), st.sampled_from(STRINGS))
booleans = st.tuples(st.just("boolean"), st.booleans())
exists = st.tuples(st.just("exists"), names)

numbers: st.SearchStrategy[Expression] = st.recursive(
    integers | properties_,
    lambda inner: st.tuples(st.just("negative"), inner) | st.tuples(st.sampled_from(ARITHMETIC), inner, inner),
    max_leaves=4,
)
simple_conditions: st.SearchStrategy[Expression] = st.one_of(
    properties_,
    exists,
    booleans,
    st.tuples(st.sampled_from(EQUALITY), properties_, integers | strings | booleans),
    st.tuples(st.sampled_from(ORDER), properties_, integers | strings),
    st.tuples(st.sampled_from(EQUALITY + ORDER), numbers, numbers),
    st.tuples(st.sampled_from(EQUALITY + ORDER), strings | properties_, strings | properties_),
)
conditions: st.SearchStrategy[Expression] = st.recursive(
    simple_conditions,
    lambda inner: st.one_of(
        st.tuples(st.just("!"), inner),
        st.tuples(st.sampled_from(["&&", "||"]), inner, inner),
        st.tuples(st.sampled_from(EQUALITY), inner, inner),
    ),
    max_leaves=8,
)
anything: st.SearchStrategy[Expression] = st.recursive(
    integers | strings | booleans | properties_ | exists,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["!", "negative"]), inner),
        st.tuples(st.sampled_from([*PRECEDENCE]), inner, inner),
    ),
    max_leaves=6,
)

values = st.one_of(st.booleans(), st.sampled_from([-1, 0, 1, 2, 7]), st.sampled_from(INTEGERS + STRINGS))
strangers = st.one_of(st.none(), st.floats(), st.just(2**63), st.just(-(2**63) - 1), st.just([1]), st.just({}))
messages: st.SearchStrategy[dict[str, Any]] = st.dictionaries(names, values, max_size=len(NAMES))
full_messages: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(dict.fromkeys(NAMES, values))
strange_messages: st.SearchStrategy[dict[str, Any]] = st.dictionaries(names, values | strangers)


def write(expression: Expression, style: Random) -> str:
    """An expression as text: spacing, spelling and needless parentheses as the dice fall."""
    text = bare(expression, style)
    return f"({text})" if style.random() < 0.1 else text


def bare(expression: Expression, style: Random) -> str:
    symbol, *operands = expression
    if symbol == "string":
        escaped = operands[0].replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if symbol in ("integer", "property"):
        return str(operands[0])
    if symbol == "boolean":
        return "true" if operands[0] else "false"
    if symbol == "exists":
        return f"exists{space(style)}({space(style)}{operands[0]}{space(style)})"
    if symbol in ("!", "negative"):
        prefix = "-" if symbol == "negative" else style.choice(SPELLINGS["!"])
        return f"{prefix}{space(style)}{operand(operands[0], len(PRECEDENCES), style)}"
    spelling = style.choice(SPELLINGS.get(symbol, [symbol]))
    left = operand(operands[0], PRECEDENCE[symbol], style)
    right = operand(operands[1], PRECEDENCE[symbol] + 1, style)
    return f"{left}{space(style)}{spelling}{space(style)}{right}"


def operand(expression: Expression, minimum: int, style: Random) -> str:
    text = write(expression, style)
    return text if PRECEDENCE.get(expression[0], len(PRECEDENCES)) >= minimum else f"({text})"


def space(style: Random) -> str:
    return style.choice(["", " ", " ", "  ", "\t", "\n", "\r\n"])
