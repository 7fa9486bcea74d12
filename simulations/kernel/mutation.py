"""Mutation testing: a mutant is a bug planted into the shipped code while a world runs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    about: str
    scenario: str
    # Invariants whose checkers find it; a mutant that merely crashes the node is not found.
    found_as: tuple[str, ...]
    apply: Callable[[], AbstractContextManager[None]]


@contextmanager
def mutated(mutant: Mutant | None) -> Iterator[None]:
    if mutant is None:
        yield
        return
    with mutant.apply():
        yield


@contextmanager
def swapped(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by `wrong(owner.name)` while the block runs."""
    right = getattr(owner, name)
    setattr(owner, name, wrong(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextmanager
def all_of(*mutations: AbstractContextManager[None]) -> Iterator[None]:
    """Apply several changes that together are one mutant."""
    with ExitStack() as stack:
        for apply in mutations:
            stack.enter_context(apply)
        yield


class WithoutEffect:
    """Disk or file of which some methods do nothing."""

    def __init__(self, inner: Any, *without_effect: str) -> None:
        self._inner = inner
        self._without_effect = without_effect

    def __getattr__(self, name: str) -> Any:
        if name in self._without_effect:
            return lambda *_: None
        if name == "open":
            return lambda *a, **k: WithoutEffect(self._inner.open(*a, **k), *self._without_effect)
        return getattr(self._inner, name)
