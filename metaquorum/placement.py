"""Where the replicas of a new topic go."""

from collections.abc import Iterator, Sequence
from random import Random


def place(
    workers: Sequence[int], partitions: int, replication_factor: int, random: Random
) -> Iterator[tuple[int, ...]]:
    """The replicas of each partition, its first leader in front, spread evenly over `workers`.

    Leaders go round from a random worker on; the distance to their followers grows with every
    round, so that the load of a worker that fails falls on all others.
    Source: KIP-36's placement without racks.
    """
    count = len(workers)
    assert 0 < replication_factor <= count
    start = random.randrange(count)
    shift = random.randrange(count)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # equal placements share one tuple
    for number in range(partitions):
        first = (start + number) % count
        turn = shift + number // count
        replicas = [workers[first]]
        for follower in range(replication_factor - 1):
            replicas.append(workers[(first + 1 + (turn + follower) % (count - 1)) % count])
        placed = tuple(replicas)
        yield known.setdefault(placed, placed)
