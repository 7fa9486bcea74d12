"""Replicas of a topic whose replication is throttled (KIP-73).

    0:1,0:2,5:101    partition 0 on the workers 1 and 2, partition 5 on worker 101
    *                all partitions on all workers
    (empty)          none

A leader applies the pairs with its own id in `leader.replication.throttled.replicas`, a follower
those with its own id in `follower.replication.throttled.replicas`. KIP-73 writes some of its
examples as 0-1: that form is not accepted, in Apache Kafka either.
"""

import re
from collections.abc import Iterable
from typing import Final

from metaquorum.wire.primitives.frozen import frozen

ALL_REPLICAS: Final = "*"
FORM: Final = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
_PAIR: Final = re.compile(r"([0-9]+):([0-9]+)", re.ASCII)
# Longer numbers are accepted, as in Kafka, but are not ids; `int` refuses thousands of digits.
_MAX_DIGITS: Final = 10
_DASHED: Final = re.compile(r"([0-9]+)-([0-9]+)", re.ASCII)


@frozen
class ThrottledReplicas:
    """The pairs of one list; `are_all` for the list `*`."""

    pairs: frozenset[tuple[int, int]] = frozenset()  # partition index, worker id
    are_all: bool = False

    @classmethod
    def of(cls, items: Iterable[str]) -> "ThrottledReplicas | None":
        """Return the replicas of a list's items; None if the list has none, or is malformed."""
        found = [item for item in items if item]
        if found == [ALL_REPLICAS]:
            return cls(are_all=True)
        pairs = set()
        for item in found:
            if (match := _PAIR.fullmatch(item)) is None:
                return None
            if max(len(match[1]), len(match[2])) <= _MAX_DIGITS:
                pairs.add((int(match[1]), int(match[2])))
        return cls(frozenset(pairs)) if pairs else None

    def has(self, index: int, worker_id: int) -> bool:
        """Return whether the partition's replica on that worker is throttled."""
        return self.are_all or (index, worker_id) in self.pairs


def list_complaint(name: str, items: Iterable[str]) -> str | None:
    """Return why the items of the config `name` are not a list of replicas; None if they are."""
    found = [item for item in items if item]
    if found == [ALL_REPLICAS] or all(_PAIR.fullmatch(item) for item in found):
        return None
    dashed = next(filter(None, map(_DASHED.fullmatch, found)), None)
    hint = "" if dashed is None else f"; write {dashed[1]}:{dashed[2]} instead of {dashed[0]}"
    return (
        f"{name} must be the literal '*' or a list of replicas in the following format: "
        f"{FORM}{hint}"
    )
