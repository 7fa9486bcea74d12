"""Replica placement of new partitions.

Leaders are assigned round robin over a ring of the workers, from a random position on. The ring
alternates between racks, then between hosts. So the numbers of partitions that two workers lead
differ by at most one. Each further replica is placed on the worker with the smallest

    1. number of replicas of this partition on its host: hosts are separated first (several workers
       may run on one machine, and they fail together with it)
    2. number of replicas of this partition in its rack
    3. number of replicas on the worker in this placement, including all that it is going to lead
    4. number of times that it follows this leader, so that the load of a failed worker is spread
       over all others; then distance from the leader

Fenced workers receive replicas only if there are fewer live workers than replicas. So a topic can
be created while a worker restarts, and has all replicas when the worker is back.

Source: KIP-36 for racks; StripedReplicaPlacer of Apache Kafka for fenced workers. Placement by host
is specific to this project.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")


@frozen
class PlacementCandidate:
    """Worker that may receive replicas."""

    worker_id: int
    host: str
    rack: str | None = None


def place(
    places: Sequence[PlacementCandidate],
    partitions: int,
    replication_factor: int,
    random: Random,
    away: Sequence[PlacementCandidate] = (),
) -> Iterator[tuple[int, ...]]:
    """Yield the replicas of each partition, its first leader in front.

    `places` are the live workers, at least one; `away` are fenced workers, used last.
    """
    count = len(places)
    live = min(replication_factor, count)
    assert live > 0
    assert replication_factor <= count + len(away)
    ring = _ring(places)
    start = random.randrange(count)
    pairs: Counter[tuple[int, int]] = Counter()  # (leader, follower)
    given = Counter(  # position in the ring: replicas
        {
            position: (partitions - (position - start) % count + count - 1) // count
            for position in range(count)
        }
    )
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # equal placements share one tuple
    given_away: Counter[int] = Counter()  # fenced worker: replicas
    for number in range(partitions):
        leader = (start + number) % count
        chosen = [leader]
        for _ in range(live - 1):
            follower = _next(ring, chosen, given, pairs)
            chosen.append(follower)
            given[follower] += 1
            pairs[leader, follower] += 1
        row = [ring[position] for position in chosen]
        for _ in range(replication_factor - live):
            row.append(_next_away(away, row, given_away))
            given_away[row[-1].worker_id] += 1
        placed = tuple([each.worker_id for each in row])
        yield known.setdefault(placed, placed)


def _next(
    ring: Sequence[PlacementCandidate],
    chosen: list[int],
    given: Counter[int],
    pairs: Counter[tuple[int, int]],
) -> int:
    """Return the position in the ring of the partition's next replica."""
    count, leader = len(ring), chosen[0]
    hosts = Counter([ring[position].host for position in chosen])
    racks = Counter([ring[position].rack for position in chosen])

    def key(position: int) -> tuple[int, int, int, int, int]:
        place = ring[position]
        return (
            hosts[place.host],
            racks[place.rack],
            given[position],
            pairs[leader, position],
            (position - leader) % count,
        )

    return min((position for position in range(count) if position not in chosen), key=key)


def _next_away(
    away: Sequence[PlacementCandidate], row: Sequence[PlacementCandidate], given: Counter[int]
) -> PlacementCandidate:
    hosts = Counter([each.host for each in row])
    racks = Counter([each.rack for each in row])

    def key(place: PlacementCandidate) -> tuple[int, int, int, int]:
        return hosts[place.host], racks[place.rack], given[place.worker_id], place.worker_id

    return min((each for each in away if each not in row), key=key)


def _ring(places: Sequence[PlacementCandidate]) -> list[PlacementCandidate]:
    """Return the workers in an order that separates racks and hosts as far as possible."""
    by_rack: dict[str, dict[str, list[PlacementCandidate]]] = {}
    for each in sorted(places, key=lambda place: place.worker_id):
        by_rack.setdefault(each.rack or "", {}).setdefault(each.host, []).append(each)
    return _alternating([_alternating(list(hosts.values())) for hosts in by_rack.values()])


def _alternating(rows: Sequence[Sequence[T]]) -> list[T]:
    """Return the first item of each row, then the second of each, and so on."""
    longest = max(len(row) for row in rows)
    return [row[number] for number in range(longest) for row in rows if number < len(row)]
