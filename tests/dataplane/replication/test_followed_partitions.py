"""Partitions that a follower fetches from its leader, request by request."""

from pathlib import Path

import pytest

from dataplane.fetch.session_client import FetchLimits, FetchSessionClient
from dataplane.partition.partition import Partition
from dataplane.replication.followed_partitions import LOOK_AT_ALL_S, FollowedPartitions
from tests.dataplane.log.logs import append, make_batch, open_log
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.replicas import Setting
from wire.messages.fetch import FetchResponse

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
