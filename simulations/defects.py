"""Mistakes planted into the shipped code, to show that the checkers find them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    about: str
    scenario: str
    plant: Callable[[], AbstractContextManager[None]]


@contextmanager
def planted(defect: Defect | None) -> Iterator[None]:
    if defect is None:
        yield
        return
    with defect.plant():
        yield


DEFECTS: Final[dict[str, Defect]] = {}
