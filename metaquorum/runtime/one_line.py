"""Escaping of untrusted text (names, error messages) for one line of a log or terminal.

A line end in a name would forge a log line. A terminal executes control characters, and a character
that changes the direction of writing displays a name as a different one.
"""

import re
from typing import Final

# Control characters (including all line ends of `str.splitlines`), direction marks and overrides,
# line and paragraph separators, invisible marks of formats and tags, and lone surrogates, which
# cannot be written to a file. The joiners of scripts and emoji (U+200C, U+200D) are safe.
UNSAFE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


def one_line(text: str) -> str:
    """Return the text with unsafe characters escaped as in Python literals: `\\n`, `\\x1b`."""
    return UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def json_escaped(text: str) -> str:
    """Return a line of JSON text with unsafe characters escaped: it has the same value."""
    return UNSAFE.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
