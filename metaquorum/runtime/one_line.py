"""Text from strangers (names, messages of errors) as part of one line of a log or of a terminal.

A line end in a name would forge a line of the log; a control character is obeyed by the terminal
that shows it, and a character that turns the direction of writing shows a name as another.
"""

import re
from typing import Final

# Controls (with every line end that `str.splitlines` knows), marks and overrides of direction,
# the separators of lines and paragraphs, and lone surrogates, which no file can take.
UNSAFE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def one_line(text: str) -> str:
    """The text with each unsafe character as Python would write it in a string: `\\n`, `\\x1b`."""
    return UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
