"""What was probably meant, where an expression is wrong or a message lacks a property."""

import unicodedata
from collections.abc import Mapping
from difflib import get_close_matches

from milepost.filter.excerpt import on_one_line

__all__ = [
    "after_operator",
    "after_value",
    "call",
    "character",
    "missing_property",
    "open_string",
    "stray",
]

_CLOSING_QUOTES = {
    "'": "'",
    "`": "`",
    "\N{LEFT SINGLE QUOTATION MARK}": "\N{RIGHT SINGLE QUOTATION MARK}",
    "\N{RIGHT SINGLE QUOTATION MARK}": "\N{RIGHT SINGLE QUOTATION MARK}",
    "\N{LEFT DOUBLE QUOTATION MARK}": "\N{RIGHT DOUBLE QUOTATION MARK}",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "\N{RIGHT DOUBLE QUOTATION MARK}",
    "\N{DOUBLE LOW-9 QUOTATION MARK}": "\N{LEFT DOUBLE QUOTATION MARK}",
    "\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}": ("\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}"),
}
# What stands alone, or, found one after the other, two operators that may have been meant as one.
_MEANT = {
    "&": "&&",
    "|": "||",
    "\N{NOT EQUAL TO}": "!=",
    "\N{LESS-THAN OR EQUAL TO}": "<=",
    "\N{GREATER-THAN OR EQUAL TO}": ">=",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "<>": "!=",
    "=<": "<=",
    "=>": ">=",
    "===": "==",
    "!==": "!=",
    "<=": "<=",
    ">=": ">=",
    "==": "==",
    "!=": "!=",
    "!": "!=",
}
_MAX_QUOTED_CHARACTERS = 40


def character(found: str) -> str:
    """A character that can be told from its look-alikes."""
    if found.isascii() and found.isprintable():
        return f'"{found}"'
    name = unicodedata.name(found, "").lower()
    return f"U+{ord(found):04X} ({name})" if name else f"U+{ord(found):04X}"


def stray(text: str, offset: int) -> str | None:
    """For a character that starts nothing."""
    found = text[offset]
    if found in _CLOSING_QUOTES:
        return _quoted(text, offset)
    if found in _MEANT:
        return _did_you_mean(_MEANT[found])
    if found in ("_", ".") or found.isalpha():
        return "a name has ASCII letters, digits, _ and . and starts with a letter"
    return None


def _quoted(text: str, offset: int) -> str:
    end = text.find(_CLOSING_QUOTES[text[offset]], offset + 1)
    content = text[offset + 1 : end if end > 0 else len(text)]
    if '"' in content or "\\" in content:
        return 'strings stand in double quotes, with \\" and \\\\ for a quote and a backslash'
    return f'strings stand in double quotes: did you mean "{on_one_line(content, _MAX_QUOTED_CHARACTERS)}"?'


def open_string(text: str, offset: int) -> str | None:
    """For a string that never ends."""
    if text[offset:].endswith('\\"'):
        return 'the last \\" is part of the string: for a backslash before the quote write \\\\'
    if text.rstrip()[-1] in _CLOSING_QUOTES:
        return f"{character(text.rstrip()[-1])} does not end a string, a double quote does"
    return None


def after_operator(both: str) -> str | None:
    """For an operator right after another: the two may have been meant as one."""
    meant = _MEANT.get(both)
    return _did_you_mean(meant) if meant else None


def after_value(previous: str, found: str) -> str | None:
    """For something that is no operator where one should be."""
    if found in _MEANT:
        return _did_you_mean(_MEANT[found])
    for word, meant in ((found, ("and", "or")), (previous, ("not",))):
        if close := _misspelt(word, *meant):
            return _did_you_mean(close)
    return None


def call(name: str) -> str:
    """For a name with a parenthesis after it."""
    close = _misspelt(name, "not", "exists")
    return _did_you_mean(close) if close else "exists(name) is the only function"


def missing_property(name: str, properties: Mapping[str, object], on_the_right: bool) -> str | None:
    """For a property that a message does not have."""
    if name.lower() in ("true", "false"):
        return _did_you_mean(name.lower())
    # Only a plain dict can be looked through without running somebody else's code.
    keys = list(properties) if type(properties) is dict else []
    for key in keys:
        if type(key) is str and key.lower() == name.lower():
            return f'the message has "{key}": upper and lower case differ'
    return f'did you mean "{name}"? Without quotes it is a property' if on_the_right else None


def _misspelt(word: str, *meant: str) -> str | None:
    """The word that was meant, if it is one with its letters in disorder, or nearly it."""
    for candidate in meant:
        if sorted(word.lower()) == sorted(candidate):
            return candidate
    return next(iter(get_close_matches(word.lower(), meant, n=1)), None)


def _did_you_mean(what: str) -> str:
    return f'did you mean "{what}"?'
