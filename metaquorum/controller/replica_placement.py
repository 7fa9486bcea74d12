"""Where the replicas of new partitions go.

Leaders go round the workers, from a random one on, in an order that goes round the racks and hosts
first; so any number of partitions is led within one of evenly. Each further replica goes to the
worker that comes first by

    1. how many replicas of this partition its host has: hosts are separated first (several workers
       may run on one machine, and a machine fails as one)
    2. how many its rack has
    3. how many replicas it has of this placement, with all that it is going to lead
    4. how often it follows that leader already, so that the load of a worker that fails falls on
       all others; then its distance from the leader

Workers that are away are given replicas only where there are fewer live ones than replicas: so a
topic can be made while a worker is restarted, and is whole when it is back.

Source: KIP-36 for racks; StripedReplicaPlacer of Apache Kafka for who is away; hosts are ours.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

from wire.primitives.frozen import frozen

T = TypeVar("T")


@frozen
class PlacementCandidate:
    """A worker that may be given replicas."""

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
    """The replicas of each partition, its first leader in front; `away`: not live, so behind."""
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
    given_away: Counter[int] = Counter()  # worker that is away: replicas
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
    """The position in the ring that the next replica of a partition goes to."""
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
    """The workers so that neighbours are on different racks and hosts, as far as may be."""
    by_rack: dict[str, dict[str, list[PlacementCandidate]]] = {}
    for each in sorted(places, key=lambda place: place.worker_id):
        by_rack.setdefault(each.rack or "", {}).setdefault(each.host, []).append(each)
    return _alternating([_alternating(list(hosts.values())) for hosts in by_rack.values()])


def _alternating(rows: Sequence[Sequence[T]]) -> list[T]:
    """The first of each row, then the second of each, and so on."""
    longest = max(len(row) for row in rows)
    return [row[number] for number in range(longest) for row in rows if number < len(row)]
