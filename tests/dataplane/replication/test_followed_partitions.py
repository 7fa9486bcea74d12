"""Partitions that a follower fetches from its leader, request by request."""

from pathlib import Path
from random import Random

import pytest

from metaquorum.dataplane.fetch.session_client import FetchLimits, FetchSessionClient
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.quotas.replication_quota import BURST_S, ReplicationQuota
from metaquorum.dataplane.replication.followed_partitions import LOOK_AT_ALL_S, FollowedPartitions
from metaquorum.dataplane.replication.throttle import MOST_PAUSE_S, FollowerThrottle
from metaquorum.wire.messages.fetch import FetchResponse
from tests.dataplane.log.logs import append, make_batch, open_log
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.replicas import Setting, state

TOPIC_ID = bytes(15) + b"t"


class Follower:
    def __init__(self, folder: Path) -> None:
        self.session = FetchSessionClient(2, lambda: 8, FetchLimits(500, 1, 1 << 20))
        self.followed = FollowedPartitions(self.session, 1 << 20)
        context = Setting(2).context
        self.partitions = [
            Partition("t", TOPIC_ID, index, context, open_log(folder / f"t-{index}"), config_of())
            for index in range(3)
        ]
        for partition in self.partitions:
            self.followed.add(partition, leader_epoch=0)

    def asks(self, now: float) -> dict[int, int]:
        """Return the fetch offsets of the next request, by partition; respond without records."""
        self.followed.look(now)
        request = self.session.request()
        self.session.answered(FetchResponse(session_id=5))
        return {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


def test_what_has_not_changed_is_not_asked_for_again(follower: Follower) -> None:
    assert follower.asks(0.0) == {0: 0, 1: 0, 2: 0}
    append(follower.partitions[1].log, make_batch(3))
    follower.followed.mark_changed((TOPIC_ID, 1))
    assert follower.asks(0.1) == {1: 3}
    assert follower.asks(0.2) == {}


def test_all_are_looked_at_from_time_to_time(follower: Follower) -> None:
    follower.asks(0.0)
    append(follower.partitions[2].log, make_batch(4))
    assert follower.asks(LOOK_AT_ALL_S / 2) == {}
    assert follower.asks(LOOK_AT_ALL_S) == {2: 4}


def test_what_is_delayed_is_asked_for_when_its_time_has_come(follower: Follower) -> None:
    follower.asks(0.0)
    followed = follower.followed.get((TOPIC_ID, 0))
    assert followed is not None
    follower.followed.delay(followed, 5.0)
    assert followed.want is None
    assert (follower.followed.next_resume_at(), follower.asks(4.9)) == (5.0, {})
    assert follower.asks(5.0) == {0: 0}
    assert follower.followed.next_resume_at() == float("inf")


def test_a_delay_of_what_is_followed_in_another_epoch_by_now_does_nothing(
    follower: Follower,
) -> None:
    followed = follower.followed.get((TOPIC_ID, 0))
    assert followed is not None
    assert follower.followed.add(follower.partitions[0], leader_epoch=1)
    assert not follower.followed.add(follower.partitions[0], leader_epoch=1)
    follower.followed.delay(followed, 5.0)
    assert 0 in follower.asks(0.0)


def test_what_is_removed_is_forgotten(follower: Follower) -> None:
    follower.asks(0.0)
    assert follower.followed.remove((TOPIC_ID, 1))
    assert not follower.followed.remove((TOPIC_ID, 1))
    follower.followed.mark_all_changed()
    follower.followed.look(0.1)
    (forgotten,) = follower.session.request().forgotten_topics_data
    assert (forgotten.topic_id, forgotten.partitions) == (TOPIC_ID, [1])


class ThrottledFollower(Follower):
    """A follower with 100 B/s for the partitions 1 and 2."""

    def __init__(self, folder: Path, throttled: str = "1:2,2:2") -> None:
        super().__init__(folder)
        self.quota = ReplicationQuota()
        self.quota.limit(100, 0.0)
        self.throttle = FollowerThrottle(self.quota)
        self.followed = FollowedPartitions(self.session, 1 << 20, self.throttle, Random(1))
        for partition in self.partitions:
            partition.configure(config_of(follower_replication_throttled_replicas=throttled))
            partition.assign(state(1, 0, (1, 2), (1,)))
            self.followed.add(partition, leader_epoch=0)

    def asks_all(self, now: float) -> list[int]:
        """Return the partitions of a full request, in its order."""
        self.session.restart()
        return list(self.asks(now))


def test_throttled_partitions_are_left_out_together_until_the_quota_allows_them(
    tmp_path: Path,
) -> None:
    follower = ThrottledFollower(tmp_path)
    assert follower.asks(0.0) == {0: 0, 1: 0, 2: 0}
    follower.throttle.record(follower.partitions[1], 52, 0.0)  # half a second, and BURST_S
    assert follower.asks_all(0.0) == [0]
    assert follower.followed.next_resume_at() == pytest.approx(0.5)
    assert follower.asks_all(0.49) == [0]
    assert sorted(follower.asks_all(0.51)) == [0, 1, 2]


def test_throttled_partitions_ask_for_what_the_quota_has_left(tmp_path: Path) -> None:
    """A response of any size would use the rate of many seconds at once."""
    follower = ThrottledFollower(tmp_path)
    follower.asks(0.0)
    most = {
        index: want.max_bytes
        for index in (0, 1, 2)
        if (found := follower.followed.get((TOPIC_ID, index))) and (want := found.want)
    }
    assert most[0] > 1000
    assert most[1] == most[2] == 100 * BURST_S


def test_left_out_partitions_are_examined_again_after_a_second(tmp_path: Path) -> None:
    follower = ThrottledFollower(tmp_path)
    follower.throttle.record(follower.partitions[1], 100_000, 0.0)
    assert follower.asks_all(0.0) == [0]
    assert follower.followed.next_resume_at() == MOST_PAUSE_S
    follower.partitions[2].configure(config_of())
    assert sorted(follower.asks_all(MOST_PAUSE_S)) == [0, 2]


def test_partitions_in_sync_or_caught_up_are_not_left_out(tmp_path: Path) -> None:
    follower = ThrottledFollower(tmp_path, "*")
    follower.partitions[0].assign(state(1, 0, (1, 2), (1, 2), 1))
    follower.throttle.record(follower.partitions[1], 200, 0.0)
    caught_up = follower.followed.get((TOPIC_ID, 1))
    assert caught_up is not None
    caught_up.is_caught_up = True
    assert sorted(follower.asks(0.0)) == [0, 1]


def test_left_out_partitions_are_fetched_again_in_a_random_order(tmp_path: Path) -> None:
    follower = ThrottledFollower(tmp_path, "*")
    firsts, now = set(), 0.0
    for _ in range(20):
        follower.throttle.record(follower.partitions[0], 101, now)
        assert follower.asks_all(now) == []
        now += 2.0
        firsts.add(follower.asks_all(now)[0])
    assert firsts == {0, 1, 2}


def test_removed_and_delayed_partitions_are_not_left_out(tmp_path: Path) -> None:
    follower = ThrottledFollower(tmp_path, "*")
    follower.throttle.record(follower.partitions[0], 200, 0.0)
    assert follower.asks(0.0) == {}
    delayed = follower.followed.get((TOPIC_ID, 1))
    assert delayed is not None
    follower.followed.delay(delayed, 5.0)
    follower.followed.remove((TOPIC_ID, 2))
    assert follower.asks_all(3.0) == [0]
    assert sorted(follower.asks_all(5.0)) == [0, 1]
