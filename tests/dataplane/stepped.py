"""Long work, step by step, without a task."""

from collections.abc import Iterator
from typing import Any

from metaquorum.dataplane.scheduling.time_slices import Steps, step


def stepped(work: Steps[Any]) -> Iterator[None]:
    """Yield at each pause of `work`."""
    while step(work) is None:
        yield
