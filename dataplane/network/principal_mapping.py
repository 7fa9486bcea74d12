"""Principals of TLS client certificates: `ssl.principal.mapping.rules` (KIP-371, KIP-492).

    RULE:^CN=(.*?),OU=Sales.*$/$1/L, RULE:^UID=(.*?),.*$/$1/, DEFAULT

The first rule whose pattern matches the whole distinguished name determines the principal's name.
With DEFAULT, or without a matching rule, that is the distinguished name unchanged.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

_ESCAPE: Final = r"(?:[^/\\]|\\.)*"
_RULE: Final = re.compile(
    rf"\s*(?:(DEFAULT)|RULE:(?P<pattern>{_ESCAPE})/(?P<replacement>{_ESCAPE})/(?P<case>[LU]?))"
    r"\s*(?:,|$)"
)
_GROUP: Final = re.compile(r"\\(.)|\$(\d)")
_CASES: Final[Mapping[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}
MAX_RULES: Final = 100


class PrincipalMapping:
    """The mapping rules of one listener."""

    def __init__(self, text: str) -> None:
        """Parse the rules. Raises ValueError, which quotes the invalid rule, pattern or group."""
        self._rules: list[tuple[re.Pattern[str], str, str]] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None or len(self._rules) >= MAX_RULES:
                raise ValueError(f"not a rule, or too many rules: {text[position:]!r}")
            position = found.end()
            if found[1]:
                self._rules.append((re.compile("(.*)", re.DOTALL), "$1", ""))
                continue
            try:
                pattern = re.compile(found["pattern"])
            except re.error as error:
                raise ValueError(f"invalid pattern {found['pattern']!r}: {error}") from None
            groups = [int(group[2]) for group in _GROUP.finditer(found["replacement"]) if group[2]]
            if max(groups, default=0) > pattern.groups:
                raise ValueError(f"pattern {found['pattern']!r} has no group {max(groups)}")
            self._rules.append((pattern, found["replacement"], found["case"]))

    def name_of(self, subject: str) -> str:
        for pattern, replacement, case in self._rules:
            if (found := pattern.fullmatch(subject)) is not None:
                return _CASES[case](_replaced(replacement, found))
        return subject


def _replaced(replacement: str, found: re.Match[str]) -> str:
    def part(group: re.Match[str]) -> str:
        return group[1] if group[2] is None else (found[int(group[2])] or "")

    return _GROUP.sub(part, replacement)
