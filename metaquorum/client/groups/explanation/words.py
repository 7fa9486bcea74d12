"""Durations, partitions and lists of names in sentences."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from metaquorum.client.cluster import TopicPartition

MAX_NAMED: Final = 5  # members or topics in one sentence


def duration(seconds: float) -> str:
    """Return a readable duration: "0.4 s", "12 s", "5 min", "3 h", "2 d"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for least, unit_s, unit in ((172_800, 86_400, "d"), (7200, 3600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in a short form: "orders:0-3,7 payments:1"."""
    texts = []
    for topic, own in groupby(sorted(partitions), key=lambda where: where.topic):
        spans: list[list[int]] = []
        for index in (where.partition for where in own):
            if spans and index == spans[-1][1] + 1:
                spans[-1][1] = index
            else:
                spans.append([index, index])
        shown = [f"{first}-{last}" if last > first else str(first) for first, last in spans]
        texts.append(f"{topic}:{','.join(shown)}")
    return listed(texts, " ")


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first names, and the number of the others."""
    shown = list(names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        shown.append(f"and {len(names) - MAX_NAMED} more")
    return separator.join(shown)
