"""The experiments of KIP-73 (test plan and questions), with the rules alone, in virtual time.

Each link of a leader and a follower exchanges fetches as both sides do: the follower leaves all its
throttled partitions out while its quota is exceeded, the leader omits each that would exceed its
own, and partitions that were sent go to the end of the queue.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from random import Random

import pytest

from metaquorum.dataplane.quotas.replication_quota import ReplicationQuota

MB = 1_000_000
PARTITION_BYTES = 256 * 1024
RESPONSE_BYTES = 10 << 20
STEP_S = 0.05


@dataclass
class Move:
    """A replica that is being created: what its leader has and the follower has not."""

    leader: int
    follower: int
    missing: float
    produced_per_s: float = 0.0
    done_at: float | None = None


@dataclass
class Cluster:
    moves: list[Move]
    leader_rate: int
    follower_rate: int
    now: float = 0.0
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    draws: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        self.leaders = {move.leader: ReplicationQuota() for move in self.moves}
        self.followers = {move.follower: ReplicationQuota() for move in self.moves}
        self.limit(self.leader_rate, self.follower_rate)
        self.links: dict[tuple[int, int], deque[Move]] = defaultdict(deque)
        for move in self.moves:
            self.links[move.leader, move.follower].append(move)

    def limit(self, leader_rate: int, follower_rate: int) -> None:
        for quotas, rate in ((self.leaders, leader_rate), (self.followers, follower_rate)):
            for quota in quotas.values():
                quota.limit(rate, self.now)

    @property
    def lag(self) -> float:
        """SumReplicaLag, in bytes."""
        return sum(move.missing for move in self.moves)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and any(move.done_at is None for move in self.moves):
            for move in self.moves:
                move.missing += move.produced_per_s * STEP_S
            self.now += STEP_S
            while sum(map(self._fetch, self.draws.sample(list(self.links), len(self.links)))):
                pass

    def _fetch(self, link: tuple[int, int]) -> int:
        leader, follower = self.leaders[link[0]], self.followers[link[1]]
        if follower.is_exceeded(self.now):
            return 0
        queue, given = self.links[link], 0
        for _ in range(len(queue)):
            move = queue[0]
            size = int(min(move.missing, PARTITION_BYTES, RESPONSE_BYTES - given))
            if not size or leader.is_exceeded(self.now, given):
                break
            queue.rotate(-1)
            given += size
            move.missing -= size
            if move.missing < 1 and move.done_at is None:
                move.done_at = self.now
        leader.record(given, self.now)
        follower.record(given, self.now)
        self.sent[link[0]] += given
        self.received[link[1]] += given
        return given


def between(
    leaders: range, followers: range, partitions: int, size: int, rate: float = 0.0
) -> list[Move]:
    pairs = [(each, to) for each in leaders for to in followers]
    return [Move(*pairs[n % len(pairs)], size, rate / partitions) for n in range(partitions)]


@pytest.mark.parametrize(
    ("leaders", "followers"),
    [
        (range(1), range(1, 2)),  # two workers
        (range(1), range(1, 3)),  # one to two: the leader's quota holds
        (range(2), range(2, 3)),  # two to one: the follower's quota holds
    ],
)
@pytest.mark.parametrize("inbound", [0, 4 * MB])
def test_replicas_move_at_the_rate_of_the_quota_less_the_inbound_rate(
    leaders: range, followers: range, inbound: int
) -> None:
    moves = between(leaders, followers, 100, 24 * MB, inbound)
    cluster = Cluster(moves, 10 * MB, 10 * MB)
    total = cluster.lag
    cluster.run(11.0)  # the first window
    began, left = cluster.now, cluster.lag
    cluster.run(180.0)  # a response has up to a second's bytes
    rate = (left - cluster.lag) / (cluster.now - began)
    assert rate == pytest.approx(10 * MB - inbound, rel=0.01)
    cluster.run(1000.0)
    assert cluster.now == pytest.approx(total / (10 * MB - inbound), rel=0.02)


def test_all_partitions_progress_at_the_same_rate() -> None:
    moves = between(range(1), range(1, 3), 100, 12 * MB)
    cluster = Cluster(moves, 10 * MB, 10 * MB)
    cluster.run(60.0)
    left = [move.missing for move in moves]
    for of_link in (left[::2], left[1::2]):  # the two followers' links alternate at random
        assert max(of_link) - min(of_link) <= PARTITION_BYTES
    assert sum(left[::2]) == pytest.approx(sum(left[1::2]), rel=0.2)


@pytest.mark.parametrize("throttle", [4 * MB, 3 * MB])
def test_a_throttle_up_to_the_inbound_rate_stalls_until_it_is_raised(throttle: int) -> None:
    cluster = Cluster(between(range(1), range(1, 2), 100, MB, 4 * MB), throttle, throttle)
    cluster.run(11.0)
    lag = cluster.lag
    cluster.run(300.0)
    assert cluster.lag >= lag * 0.99  # SumReplicaLag has stopped decreasing
    cluster.limit(10 * MB, 10 * MB)
    cluster.run(1000.0)
    assert all(move.done_at is not None for move in cluster.moves)


def test_a_low_leader_throttle_limits_a_bootstrapping_worker_with_a_high_one() -> None:
    """An asymmetric throttle: the leaders' rates add up, and the lower side holds."""
    cluster = Cluster(between(range(4), range(4, 5), 100, 12 * MB), MB, 100 * MB)
    cluster.run(11.0)
    received = cluster.received[4]
    cluster.run(60.0)
    assert (cluster.received[4] - received) / 60 == pytest.approx(4 * MB, rel=0.01)


def test_the_move_time_of_the_seed() -> None:
    """MoveTime = MoveRatio x TotalLogSizePerBroker x #Brokers / (quota - max(BytesInPerSec)).

    Of 100 partitions on two workers with 1.2 GB each, 40 move from one to the other.
    """
    moves = between(range(1), range(1, 2), 40, 24 * MB, 2 * MB)
    cluster = Cluster(moves, 10 * MB, 10 * MB)
    cluster.run(10_000.0)
    assert cluster.now == pytest.approx(0.4 * 1200 * MB * 2 / (10 * MB - 2 * MB), rel=0.02)


@pytest.mark.parametrize(("leaders", "quota", "window_s", "response"), [(5, MB, 10, 10 * MB)])
def test_the_largest_response_of_the_seed_is_admitted_within_its_window(
    leaders: int, quota: int, window_s: int, response: int
) -> None:
    """replica.fetch.response.max.bytes < QuotaLeader x window, for any number of workers."""
    for _ in range(leaders):
        leader = ReplicationQuota(window_s + 1)
        leader.limit(quota, 0.0)
        leader.record(response, 0.0)
        assert leader.delay_s(0.0) < window_s
        assert leader.rate(float(window_s)) <= quota
