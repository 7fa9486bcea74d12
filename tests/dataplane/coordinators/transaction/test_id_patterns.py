import re

import pytest

from dataplane.coordinators.transaction.id_patterns import IdPattern, PatternError


@pytest.mark.parametrize(
    "pattern",
    ["a", "a*", "a+b?", "(a|b)*c", "^ab$", "[a-c]+", "[^a]", r"\w+-\d", "a.c", "(?:ab)+?"],
)
def test_patterns_match_as_regular_expressions(pattern: str) -> None:
    for text in ("", "a", "b", "ab", "aab", "abc", "abac", "a-1", "z", "axc", "abab"):
        assert IdPattern(pattern).matches(text) is (re.fullmatch(pattern, text) is not None) or (
            not pattern
        )


@pytest.mark.parametrize(
    "pattern", ["(", ")", "*a", "[a", "a{2}", r"\1", "(?=a)", "x" * 257, "b-[z-a]"]
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        IdPattern(pattern)


def test_a_pattern_that_backtracks_elsewhere_is_linear() -> None:
    assert not IdPattern("(a*)*(a*)*b").matches("a" * 5000)
