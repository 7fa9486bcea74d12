"""Patterns of transactional ids in ListTransactions (KIP-1152), matched in linear time.

Kafka uses RE2, which never backtracks. Python's `re` does, so a short pattern could hold the event
loop for hours. This is the part of RE2's syntax that ids need, as a set of states that advances by
one character at a time:

    x . \\. [a-z_] [^...] \\d \\w \\s \\D \\W \\S    xy    x|y    (x) (?:x)    x* x+ x?

`^` at the start and `$` at the end are accepted and mean nothing: a pattern must match the whole
id. Counted repetitions, flags and classes by name are refused, as is a pattern of more than
`MAX_CHARACTERS`, or with more than `MAX_NESTED` groups in each other: the parser is recursive.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from metaquorum.dataplane.scheduling.time_slices import at_once, pause

MAX_CHARACTERS: Final = 256
MAX_NESTED: Final = 32
# States that are visited between two checks of the clock; each takes about a microsecond.
PIECE_STATES: Final = 1000
_SPECIAL: Final = frozenset("*+?{}|()")

_Test: TypeAlias = Callable[[str], bool]


class PatternError(ValueError):
    """Raised if a pattern is malformed or not supported; the message says why."""


class _Node:
    """A state: `test` and the next state for a character, or states that follow without one."""

    __slots__ = ("nexts", "test")

    def __init__(self, test: _Test | None = None) -> None:
        self.test = test
        self.nexts: list[_Node] = []


class IdPattern:
    """A pattern; an empty one matches every id."""

    def __init__(self, text: str) -> None:
        """Compile the pattern. Raises PatternError."""
        self._is_any = not text
        if self._is_any:
            return
        if len(text) > MAX_CHARACTERS:
            raise PatternError(f"the pattern has more than {MAX_CHARACTERS} characters")
        self._text = text.removeprefix("^")
        if self._text.endswith("$") and not self._text.endswith("\\$"):
            self._text = self._text[:-1]
        self._at = 0
        self._nested = 0
        self._start, self._end = self._alternatives()
        if self._at < len(self._text):
            raise PatternError(f"unexpected {self._text[self._at]!r}")

    def matches(self, transactional_id: str) -> bool:
        """Return whether the pattern matches the whole id, at once: for short ids."""
        return at_once(self.matching(transactional_id))

    async def matching(self, transactional_id: str) -> bool:
        """Return whether the pattern matches the whole id; pause after every `PIECE_STATES`."""
        if self._is_any:
            return True
        states, left = _closure([self._start]), PIECE_STATES
        for character in transactional_id:
            following: list[_Node] = []
            for state in states:
                if state.test is not None and state.test(character):
                    following += state.nexts
            if not following:
                return False
            left -= len(states)
            if left <= 0:
                left = PIECE_STATES
                await pause()
            states = _closure(following)
        return self._end in states

    # Parsing

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise PatternError("the pattern ends too early")
        self._at += 1
        return character

    def _alternatives(self) -> tuple[_Node, _Node]:
        start, end = _Node(), _Node()
        while True:
            first, last = self._sequence()
            start.nexts.append(first)
            last.nexts.append(end)
            if self._peek() != "|":
                return start, end
            self._at += 1

    def _sequence(self) -> tuple[_Node, _Node]:
        start = end = _Node()
        while self._peek() not in ("", "|", ")"):
            first, last = self._repeated()
            end.nexts.append(first)
            end = last
        return start, end

    def _repeated(self) -> tuple[_Node, _Node]:
        first, last = self._atom()
        sign = self._peek()
        if sign not in ("*", "+", "?") or not sign:
            return first, last
        self._at += 1
        if self._peek() == "?":  # a lazy repetition matches the same ids
            self._at += 1
        start, end = _Node(), _Node()
        start.nexts.append(first)
        last.nexts.append(end)
        if sign != "+":
            start.nexts.append(end)
        if sign != "?":
            last.nexts.append(first)
        return start, end

    def _atom(self) -> tuple[_Node, _Node]:
        character = self._take()
        if character == "(":
            if self._peek() == "?":
                if not self._text.startswith("?:", self._at):
                    raise PatternError("flags and named groups are not supported")
                self._at += 2
            self._nested += 1
            if self._nested > MAX_NESTED:
                raise PatternError(f"more than {MAX_NESTED} groups are nested")
            group = self._alternatives()
            if self._take() != ")":
                raise PatternError("a group is not closed")
            self._nested -= 1
            return group
        if character in _SPECIAL or character in "^$":
            raise PatternError(f"unexpected {character!r}")
        test: _Test
        if character == ".":
            test = _is_not_newline
        elif character == "[":
            test = self._class()
        elif character == "\\":
            test = _escape(self._take())
        else:
            test = character.__eq__
        node, end = _Node(test), _Node()
        node.nexts.append(end)
        return node, end

    def _class(self) -> _Test:
        is_negated = self._peek() == "^"
        if is_negated:
            self._at += 1
        tests: list[_Test] = []
        while True:
            character = self._take()
            if character == "]" and tests:
                break
            if character == "[" and self._peek() == ":":
                raise PatternError("classes by name are not supported")
            if character == "\\":
                tests.append(_escape(self._take()))
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                last = self._take()
                if last == "\\":
                    last = self._take()
                if last < character:
                    raise PatternError(f"the range {character}-{last} is empty")
                tests.append(_in_range(character, last))
            else:
                tests.append(character.__eq__)
        return lambda each: any(test(each) for test in tests) is not is_negated


def _closure(states: list[_Node]) -> set[_Node]:
    """Return the states and all that follow them without a character."""
    found: set[_Node] = set()
    while states:
        state = states.pop()
        if state not in found:
            found.add(state)
            if state.test is None:
                states += state.nexts
    return found


def _is_not_newline(character: str) -> bool:
    return character != "\n"


def _in_range(first: str, last: str) -> _Test:
    return lambda character: first <= character <= last


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _is_word(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


def _is_space(character: str) -> bool:
    return character in "\t\n\f\r "


def _not(test: _Test) -> _Test:
    return lambda character: not test(character)


_CLASSES: Final = {"d": _is_digit, "w": _is_word, "s": _is_space}


def _escape(character: str) -> _Test:
    if character in _CLASSES:
        return _CLASSES[character]
    if character.lower() in _CLASSES:
        return _not(_CLASSES[character.lower()])
    if character.isalnum():
        raise PatternError(f"\\{character} is not supported")
    return character.__eq__
