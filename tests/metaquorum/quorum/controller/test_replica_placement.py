"""Replica placement over clusters of every shape."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.controller.replica_placement import PlacementCandidate, place


@st.composite
def clusters(draw: st.DrawFn) -> list[PlacementCandidate]:
    """Generate workers on hosts, each host in one rack or in none."""
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6))
    places = []
    for host, rack in enumerate(racks):
        for _ in range(draw(st.integers(1, 3))):
            places.append(PlacementCandidate(len(places) * 3 % 19, f"host-{host}", rack))
    return places


CLUSTERS_WITH_FACTORS = clusters().flatmap(
    lambda places: st.tuples(st.just(places), st.integers(1, min(5, len(places))))
)


def spread(counts: Counter[int], workers: list[int]) -> int:
    of_each = [counts[worker] for worker in workers]
    return max(of_each) - min(of_each)


@given(CLUSTERS_WITH_FACTORS, st.integers(1, 60), st.integers(0, 9))
def test_replicas_are_apart_and_leaders_even(
    cluster: tuple[list[PlacementCandidate], int], partitions: int, seed: int
) -> None:
    places, factor = cluster
    workers = [each.worker_id for each in places]
    hosts = {each.worker_id: each.host for each in places}
    racks = {each.worker_id: each.rack for each in places}
    placed = list(place(places, partitions, factor, Random(seed)))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({hosts[each] for each in replicas}) == min(factor, len(set(hosts.values())))
        assert len({racks[each] for each in replicas}) == min(factor, len(set(racks.values())))
    assert spread(Counter(replicas[0] for replicas in placed), workers) <= 1
    assert placed == list(place(places[::-1], partitions, factor, Random(seed)))


@given(CLUSTERS_WITH_FACTORS, st.integers(1, 60), st.integers(0, 9), st.data())
def test_who_is_away_comes_last_and_only_where_the_others_are_too_few(
    cluster: tuple[list[PlacementCandidate], int], partitions: int, seed: int, data: st.DataObject
) -> None:
    places, factor = cluster
    gone = data.draw(st.integers(0, len(places) - 1))
    away, live = places[:gone], places[gone:]
    near = min(factor, len(live))
    placed = list(place(live, partitions, factor, Random(seed), away))
    assert [each[:near] for each in placed] == list(place(live, partitions, near, Random(seed)))
    behind = Counter(worker_id for each in placed for worker_id in each[near:])
    assert all(len(set(each)) == factor for each in placed)
    assert set(behind) <= {each.worker_id for each in away}
    if away and len({each.host for each in places}) == 1:
        assert spread(behind, [each.worker_id for each in away]) <= 1


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 60), st.data())
def test_where_all_hosts_and_racks_are_alike_replicas_are_within_one_of_even(
    racks: int, hosts: int, workers: int, partitions: int, data: st.DataObject
) -> None:
    places = [
        PlacementCandidate(rack * 100 + host * 10 + worker, f"{rack}-{host}", str(rack))
        for rack in range(racks)
        for host in range(hosts)
        for worker in range(workers)
    ]
    factor = data.draw(st.integers(1, min(4, len(places))))
    placed = place(places, partitions, factor, Random(data.draw(st.integers(0, 9))))
    held = Counter(worker for replicas in placed for worker in replicas)
    even = partitions * factor / len(places)
    assert all(abs(held[each.worker_id] - even) <= 1 for each in places)


def test_followers_of_a_worker_are_spread_over_the_others() -> None:
    places = [PlacementCandidate(number, f"host-{number}") for number in range(5)]
    placed = list(place(places, 100, 3, Random(1)))
    for leader in range(5):
        followers = Counter(f for r in placed if r[0] == leader for f in r[1:])
        assert set(followers) == set(range(5)) - {leader}
        assert max(followers.values()) - min(followers.values()) <= 4
