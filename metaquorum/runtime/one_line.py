"""Escaping of untrusted text (names, error messages) for one line of a log or terminal.

A line end in a name would forge a log line. A terminal executes control characters, and a character
that changes the direction of writing displays a name as a different one.
"""

import re
from typing import Final

# Control characters (including all line ends of `str.splitlines`), direction marks and overrides,
# line and paragraph separators, and lone surrogates, which cannot be written to a file.
UNSAFE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def one_line(text: str) -> str:
    """Return the text with unsafe characters escaped as in Python literals: `\\n`, `\\x1b`."""
    return UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
