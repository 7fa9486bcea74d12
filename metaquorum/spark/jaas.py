"""Parser for Kafka's `sasl.jaas.config`: one login module with its entries.

    <module> required name="value" name='value' name=word;

The tokens are those of Java's StreamTokenizer as Kafka's `JaasConfig` configures it (KIP-85):
strings in single or double quotes with C's escapes, bare words, `//` and `/* */` comments. No
message repeats a part of the text, because the text holds a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_CHARACTERS: Final = 1 << 16
_FLAGS: Final = frozenset(("required", "requisite", "sufficient", "optional"))
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|//[^\r\n]*|/\*(?:[^*]|\*(?!/))*\*/)"
    r"|(?P<word>[\w.$-]+)"
    r"|(?P<mark>[=;])"
    r'|"(?P<double>(?:\\[^\r\n]|[^"\\\r\n])*)"'
    r"|'(?P<single>(?:\\[^\r\n]|[^'\\\r\n])*)'"
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_ESCAPED: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Return the login module and its entries.

    Raises ValueError with a phrase "has ...", which the caller puts after the option's name.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has more than {MAX_CHARACTERS} characters")
    tokens = _tokens(text)
    module = _word(tokens, "no login module")
    if _word(tokens, "no control flag after the login module").lower() not in _FLAGS:
        raise ValueError("has no control flag (required) after the login module")
    entries: dict[str, str] = {}
    while True:
        kind, name = next(tokens, ("end", ""))
        if (kind, name) == ("mark", ";"):
            break
        if kind != "word":
            raise ValueError("does not end with a semicolon" if kind == "end" else _NO_ENTRY)
        if next(tokens, None) != ("mark", "="):
            raise ValueError(_NO_ENTRY)
        kind, value = next(tokens, ("end", ""))
        if kind not in ("word", "string"):
            raise ValueError("has an entry without a value")
        if name in entries:
            raise ValueError("has an entry twice")
        entries[name] = value
    if next(tokens, None) is not None:
        raise ValueError("has more than one login module")
    return module, entries


_NO_ENTRY: Final = (
    'has text that is not an entry name=value (a quote inside a value is written \\")'
)


def _word(tokens: Iterator[tuple[str, str]], otherwise: str) -> str:
    kind, text = next(tokens, ("end", ""))
    if kind != "word":
        raise ValueError(f"has {otherwise}")
    return text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(
                f"has an unexpected character at {at + 1}, or a quote that is not closed"
            )
        at = found.end()
        kind = str(found.lastgroup)
        if kind in ("double", "single"):
            yield "string", _ESCAPE.sub(_unescape, found[kind])
        elif kind != "space":
            yield kind, found[kind]


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)
