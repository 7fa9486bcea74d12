"""How a mistake is planted into the shipped code, for as long as a world runs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    about: str
    scenario: str
    # The invariants whose checkers find it; a plant that merely breaks the node is not found.
    found_as: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[None]]


@contextmanager
def planted(defect: Defect | None) -> Iterator[None]:
    if defect is None:
        yield
        return
    with defect.plant():
        yield


@contextmanager
def swapped(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` is what `wrong` makes of the right one."""
    right = getattr(owner, name)
    setattr(owner, name, wrong(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextmanager
def all_of(*plants: AbstractContextManager[None]) -> Iterator[None]:
    """One mistake that takes several changes."""
    with ExitStack() as stack:
        for plant in plants:
            stack.enter_context(plant)
        yield


class Deaf:
    """A disk or a file, some of whose methods do nothing."""

    def __init__(self, inner: Any, *deaf: str) -> None:
        self._inner = inner
        self._deaf = deaf

    def __getattr__(self, name: str) -> Any:
        if name in self._deaf:
            return lambda *_: None
        if name == "open":
            return lambda *a, **k: Deaf(self._inner.open(*a, **k), *self._deaf)
        return getattr(self._inner, name)
