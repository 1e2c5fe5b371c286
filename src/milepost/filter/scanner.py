"""From the text of a filter to its tokens."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from milepost.filter import hints
from milepost.filter.excerpt import on_one_line
from milepost.filter.problem import FilterProblem
from milepost.filter.values import Value
from milepost.names import is_property_name

__all__ = ["Token", "scan"]

_SPACE = " \t\n\r"
_SPACES = re.compile(f"[{_SPACE}]*")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_DIGITS = re.compile(r"[0-9]+")
_NUMBER_LIKE = re.compile(r"[0-9A-Za-z_.]+")
_UNESCAPED = re.compile(r'[^"\\]*')
_SURROGATE = re.compile("[\ud800-\udfff]")

_SPELLINGS = {
    **{symbol: symbol for symbol in "<>!+-*/%()"},
    **{symbol: symbol for symbol in ("&&", "||", "==", "!=", "<=", ">=")},
    "=": "==",
    "and": "&&",
    "or": "||",
    "not": "!",
}
_WORD_VALUES = {"true": True, "false": False}
_DIGITS_OF_AN_INTEGER = 19
_MAX_QUOTED_CHARACTERS = 24


class Token(NamedTuple):
    """A piece of the text: `symbol` is an operator's one spelling, or what else it is."""

    symbol: str
    source: str
    offset: int
    value: Value = False

    def __str__(self) -> str:
        match self.symbol:
            case "end":
                return "the end"
            case "stray":
                return hints.character(self.source)
            case "string":
                return f"the string {on_one_line(self.source, _MAX_QUOTED_CHARACTERS)}"
        return f'"{on_one_line(self.source, _MAX_QUOTED_CHARACTERS)}"'


def scan(text: str) -> Iterator[Token]:
    """The tokens of a text, the last of which is the end; raises for half a token."""
    position = 0
    end = len(text.rstrip(_SPACE))
    while (position := _skip(_SPACES, text, position)) < end:
        token = _token(text, position)
        yield token
        position += len(token.source)
    yield Token("end", "", end)


def _token(text: str, offset: int) -> Token:
    first = text[offset]
    if first == '"':
        return _string(text, offset)
    if _DIGITS.match(text, offset):
        return _integer(text, offset)
    if word := _WORD.match(text, offset):
        return _word(word.group(), offset)
    for source in (text[offset : offset + 2], first):
        if source in _SPELLINGS:
            return Token(_SPELLINGS[source], source, offset)
    return Token("stray", first, offset)


def _word(word: str, offset: int) -> Token:
    if is_property_name(word):
        return Token("name", word, offset, word)
    if word in _WORD_VALUES:
        return Token("boolean", word, offset, _WORD_VALUES[word])
    return Token(_SPELLINGS[word], word, offset)


def _integer(text: str, offset: int) -> Token:
    end = _skip(_DIGITS, text, offset)
    if _skip(_NUMBER_LIKE, text, offset) != end:
        looks = on_one_line(text[offset : _skip(_NUMBER_LIKE, text, offset)], _MAX_QUOTED_CHARACTERS)
        summary = f'expected an integer or a name, found "{looks}"'
        hint = "a number has digits only; a name starts with a letter"
        raise FilterProblem("syntax", offset, summary, hint).error(text)
    source = text[offset:end]
    # Python refuses to read very long numbers; one digit too many is as wrong as a thousand.
    significant = source.lstrip("0")[: _DIGITS_OF_AN_INTEGER + 1]
    return Token("integer", source, offset, int(significant or "0"))


def _string(text: str, offset: int) -> Token:
    position = offset + 1
    parts = []
    while True:
        end = _skip(_UNESCAPED, text, position)
        parts.append(text[position:end])
        if end == len(text):
            summary = "expected a closing quote for this string, found the end"
            raise FilterProblem("syntax", offset, summary, hints.open_string(text, offset)).error(text)
        if text[end] == '"':
            break
        parts.append(_escaped(text, end))
        position = end + 2
    value = "".join(parts)
    if lone := _SURROGATE.search(text, offset, end):
        summary = f"expected a character, found half of one, {hints.character(lone.group())}"
        raise FilterProblem("syntax", lone.start(), summary).error(text)
    return Token("string", text[offset : end + 1], offset, value)


def _escaped(text: str, backslash: int) -> str:
    following = text[backslash + 1 : backslash + 2]
    if following not in ('"', "\\"):
        summary = 'expected " or \\ after this backslash'
        hint = "a backslash is written twice; other characters need none before them"
        raise FilterProblem("syntax", backslash, summary, hint).error(text)
    return following


def _skip(pattern: re.Pattern[str], text: str, offset: int) -> int:
    found = pattern.match(text, offset)
    return found.end() if found else offset
