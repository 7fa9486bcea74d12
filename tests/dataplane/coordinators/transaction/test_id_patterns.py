import re
from itertools import pairwise

import pytest

from metaquorum.dataplane.coordinators.transaction.id_patterns import IdPattern, PatternError
from tests.counted_work import Lines
from tests.dataplane.stepped import stepped


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
    "pattern",
    ["(", ")", "*a", "[a", "a{2}", r"\1", "(?=a)", "x" * 257, "b-[z-a]", "(" * 256, "(" * 33 + "a"],
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        IdPattern(pattern)


def test_groups_can_be_nested_and_repeated_often() -> None:
    assert IdPattern("(" * 32 + "a" + ")" * 32).matches("a")
    assert IdPattern("(a)" * 85).matches("a" * 85)


def test_a_pattern_that_backtracks_elsewhere_is_linear() -> None:
    assert not IdPattern("(a*)*(a*)*b").matches("a" * 5000)


def test_a_long_id_is_matched_in_slices() -> None:
    """A pattern of 256 characters has hundreds of states; an id has up to 32,767 characters."""
    lines, seen = Lines(), [0]
    with lines.counting():
        for _ in stepped(IdPattern("(a|b|.)*" * 31).matching("a" * 1000)):
            seen.append(lines.count)
    seen.append(lines.count)
    slices = [after - before for before, after in pairwise(seen)]
    assert sum(slices) > 1_000_000
    assert max(slices) < 30_000  # some milliseconds
