"""Offsets and groups of one shard: who may commit, what is deleted, what expires."""

import struct
from itertools import islice
from math import inf

import pytest

from metaquorum.dataplane.coordinators.group import classic_group
from metaquorum.dataplane.coordinators.group.committed_offsets import (
    PIECE_OFFSETS,
    CommittedOffsets,
)
from metaquorum.dataplane.coordinators.group.consumer_subscription import subscribed_topics
from metaquorum.dataplane.coordinators.group.group_shard import (
    WRITE_RETRY_S,
    GroupConfigs,
    GroupShard,
)
from metaquorum.dataplane.coordinators.group.rebalancing import GroupLimits
from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupKey,
    GroupMetadataValue,
    MemberMetadata,
    encode_group_value,
    encode_key,
)
from metaquorum.dataplane.coordinators.group.requests import LeavingMember, SyncRequest
from metaquorum.dataplane.coordinators.group.timeouts import CALLED_AT_ONCE
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord, Write
from metaquorum.dataplane.scheduling.time_slices import at_once
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.coordinators.group.coordinator import GROUP, Answers, Coordinator
from tests.dataplane.stepped import stepped

MINUTE_MS = 60_000
DAY_S = 86_400
ALL = [ErrorCode.NONE]


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def expire(coordinator: Coordinator, group_id: str = GROUP) -> None:
    coordinator.do(coordinator.shard.expire(group_id, coordinator.now_ms))


# Commits


def test_an_offset_is_returned_once_its_record_is_committed() -> None:
    coordinator = Coordinator()
    coordinator.commits_at_once = False
    answers = coordinator.commit(5)
    assert not answers
    assert coordinator.committed() is None
    coordinator.commit_all()
    assert answers.one == ALL
    assert coordinator.committed() == 5


def test_anybody_commits_without_a_generation_while_the_group_is_empty() -> None:
    coordinator = Coordinator()
    assert coordinator.commit(1).one == ALL
    (member,) = coordinator.stable()
    assert coordinator.commit(2).one == [ErrorCode.UNKNOWN_MEMBER_ID]
    coordinator.leave(member.member_id)
    assert coordinator.commit(3).one == ALL
    assert coordinator.committed() == 3


@pytest.mark.parametrize(
    ("generation", "known", "code"),
    [
        (1, True, ErrorCode.NONE),
        (0, True, ErrorCode.ILLEGAL_GENERATION),
        (2, True, ErrorCode.ILLEGAL_GENERATION),
        (1, False, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, True, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_only_members_of_the_generation_commit(
    generation: int, known: bool, code: ErrorCode
) -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    if not known:
        member.member_id = "somebody"
    assert coordinator.commit(member=member, generation=generation).one == [code]
    assert (coordinator.committed() is not None) == (code is ErrorCode.NONE)


def test_a_process_that_was_replaced_does_not_commit() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable(instance_id="a")
    assert coordinator.commit(member=member, instance_id="a").one == ALL
    coordinator.join(instance_id="a")
    refused = coordinator.commit(6, member=member, instance_id="a")
    assert refused.one == [ErrorCode.FENCED_INSTANCE_ID]
    assert coordinator.committed() == 5


def test_members_of_no_group_cannot_commit() -> None:
    coordinator = Coordinator()
    (member,) = Coordinator().stable()
    assert coordinator.commit(member=member).one == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert coordinator.commit(1).one == ALL
    assert coordinator.commit(member=member).one == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_member_commits_while_others_are_awaited_but_not_before_the_assignment() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    coordinator.join()
    assert coordinator.commit(member=member).one == ALL  # as it gives its partitions up
    again = coordinator.join(member.member_id)
    assert coordinator.commit(member=again.one).one == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_commit_keeps_the_session() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable(session_s=10)
    for _ in range(5):
        coordinator.wait(9)
        assert coordinator.commit(member=member).one == ALL
    assert coordinator.state == "Stable"


def test_metadata_of_an_offset_is_bounded() -> None:
    coordinator = Coordinator(GroupConfigs(offset_metadata_max_bytes=10))
    assert coordinator.commit(metadata="m" * 10).one == ALL
    too_large = coordinator.commit(7, metadata="m" * 11)
    assert too_large.one == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert coordinator.committed() == 5


def test_a_commit_is_refused_while_too_many_others_are_not_committed() -> None:
    coordinator = Coordinator()
    coordinator.shard.offsets = CommittedOffsets(coordinator.offsets_budget, max_pending=1)
    coordinator.commits_at_once = False
    first = coordinator.commit(5)
    assert coordinator.commit(6).one == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    coordinator.commit_all()
    assert first.one == ALL
    coordinator.commits_at_once = True
    assert coordinator.commit(7).one == ALL


def test_offsets_survive_the_coordinator() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    coordinator.commit(6, partition=1)
    coordinator.commits_at_once = False
    coordinator.commit(9)
    coordinator.fail_over()
    assert (coordinator.committed(), coordinator.committed(partition=1)) == (5, 6)


# Topics that are deleted or created again (R10)


def test_offsets_of_a_deleted_topic_are_not_those_of_the_next_one_of_its_name() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    coordinator.topic_ids["t"] = bytes(15) + b"\2"
    assert coordinator.committed() is None
    coordinator.commit(1, partition=1)
    coordinator.do(coordinator.shard.delete_stale(GROUP))
    assert coordinator.committed(partition=1) == 1
    assert coordinator.shard.offsets.offset_count == 1


def test_offsets_of_a_deleted_topic_are_deleted_by_the_next_coordinator() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    coordinator.commit(5, topic="u")
    del coordinator.topic_ids["t"]
    coordinator.topic_ids["u"] = bytes(16)
    coordinator.fail_over()
    coordinator.do(coordinator.shard.delete_stale(GROUP))
    assert coordinator.shard.offsets.offset_count == 0


# Deletions


def test_offsets_of_consumed_topics_are_not_deleted() -> None:
    coordinator = Coordinator()
    coordinator.topic_ids["u"] = bytes(15) + b"\3"
    coordinator.commit(5)
    coordinator.commit(6, topic="u")
    coordinator.stable(protocols=[("range", subscription("t"))])
    answers = coordinator.do(coordinator.shard.delete_offsets(GROUP, [("t", 0), ("u", 0)]))
    assert answers.one == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert coordinator.committed() == 5
    assert coordinator.committed("u") is None


def test_the_topics_of_a_large_group_are_those_of_its_present_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classic_group, "LARGE_GROUP", 2)
    coordinator = Coordinator()
    _, second, _ = coordinator.stable(3, protocols=[("range", subscription("t"))])
    assert coordinator.group.subscribed_topics == {"t"}
    assert coordinator.group.subscribed_topics is coordinator.group.subscribed_topics
    coordinator.join(second.member_id, protocols=[("range", subscription("u"))])
    assert coordinator.group.subscribed_topics == {"t", "u"}
    coordinator.leave(second.member_id)
    assert coordinator.group.subscribed_topics == {"t"}


def test_a_subscription_that_ends_early_is_unknown() -> None:
    whole = subscription("t", "u")
    assert subscribed_topics([whole]) == {"t", "u"}
    of_topics = whole[:-4]  # without the length of the user data
    assert subscribed_topics([of_topics]) == {"t", "u"}
    assert {subscribed_topics([of_topics[:end]]) for end in range(len(of_topics))} == {None}


def test_offsets_of_members_with_unknown_subscriptions_are_not_deleted() -> None:
    coordinator = Coordinator()
    coordinator.stable(protocols=[("range", b"malformed")])
    codes = coordinator.do(coordinator.shard.delete_offsets(GROUP, [("t", 0)])).one
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_offsets_of_an_unknown_group_or_of_another_protocol_are_not_deleted() -> None:
    coordinator = Coordinator()
    shard = coordinator.shard
    assert shard.delete_offsets(GROUP, [("t", 0)]) is ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.stable(protocol_type="connect")
    assert shard.delete_offsets(GROUP, [("t", 0)]) is ErrorCode.NON_EMPTY_GROUP


def test_a_deleted_group_leaves_nothing() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    coordinator.commit(5, member=member)
    assert coordinator.shard.delete_group(GROUP) is ErrorCode.NON_EMPTY_GROUP
    coordinator.leave(member.member_id)
    assert coordinator.do(coordinator.shard.delete_group(GROUP)).one is ErrorCode.NONE
    assert coordinator.group_ids == []
    assert coordinator.shard.delete_group(GROUP) is ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.fail_over()
    assert coordinator.group_ids == []


def test_a_deleted_group_has_no_pending_members() -> None:
    coordinator = Coordinator()
    old = coordinator.join(needs_member_id=True).one.member_id
    assert coordinator.do(coordinator.shard.delete_group(GROUP)).one is ErrorCode.NONE
    assert coordinator.group_ids == []
    assert coordinator.join(old).one.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.budget.used_bytes == 0


def test_a_deletion_covers_offsets_that_are_not_committed_yet() -> None:
    coordinator = Coordinator()
    coordinator.commits_at_once = False
    coordinator.commit(5)
    deleted = coordinator.do(coordinator.shard.delete_group(GROUP))
    coordinator.commit_all()
    assert deleted.one is ErrorCode.NONE
    assert coordinator.group_ids == []


def test_a_member_that_joins_while_the_group_is_deleted_stays() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    coordinator.leave(member.member_id)
    coordinator.commits_at_once = False
    coordinator.do(coordinator.shard.delete_group(GROUP))
    joining = coordinator.join()
    coordinator.commit_all()
    coordinator.wait(3)
    assert joining.one.code is ErrorCode.NONE
    assert coordinator.heartbeat(joining.one) is ErrorCode.NONE


# Deletion of groups with many offsets


MANY = PIECE_OFFSETS + 1


class LargeGroup:
    """A group with one offset more than a deletion in one batch may have."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        for partition in range(MANY):
            assert self.coordinator.commit(5, partition=partition).one == ALL
        self.answers = Answers()

    @property
    def shard(self) -> GroupShard:
        return self.coordinator.shard

    def delete(self) -> None:
        outcome = self.shard.delete_group(GROUP, self.answers)
        if outcome is not None:
            self.coordinator.do(outcome)

    def write(self, pieces: int = 10) -> None:
        """Write the tombstones as the background task does."""
        for records in islice(self.shard.deletion_pieces(GROUP), pieces):
            self.coordinator.do(Write(records, ErrorCode.NONE))


def test_a_group_with_many_offsets_is_deleted_in_parts() -> None:
    large = LargeGroup()
    large.delete()
    assert GROUP in large.shard.being_deleted
    large.write()
    assert large.answers.one is ErrorCode.NONE
    assert large.coordinator.group_ids == []
    assert large.shard.offsets.offset_count == 0
    assert not large.shard.being_deleted
    assert large.coordinator.commit(6).one == ALL
    assert large.coordinator.committed() == 6


def test_a_group_that_is_deleted_in_parts_takes_no_members_and_no_commits() -> None:
    large = LargeGroup()
    large.coordinator.commits_at_once = False
    large.coordinator.topic_ids.clear()  # the topic is deleted
    large.delete()
    retriable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for _ in range(2):  # before and after the beginning of the deletion is committed
        assert large.coordinator.commit(6).one == [retriable]
        assert large.coordinator.join().one.code is retriable
        assert large.shard.delete_offsets(GROUP, [("t", 0)]) is retriable
        assert large.shard.delete_stale(GROUP) is None
        assert large.shard.expire(GROUP, 10**15) is None
        large.coordinator.commit_all()
    assert not large.answers


def test_commits_before_a_deletion_in_parts_are_deleted_with_the_group() -> None:
    large = LargeGroup()
    large.coordinator.commits_at_once = False
    pending = large.coordinator.commit(6, topic="u")
    large.delete()
    large.write()
    large.coordinator.commit_all()
    assert pending.one == ALL
    assert large.shard.offsets.offset_count == 0


def test_the_next_coordinator_completes_a_deletion_in_parts() -> None:
    large = LargeGroup()
    (member,) = large.coordinator.stable()
    large.coordinator.leave(member.member_id)
    large.delete()
    large.write(1)
    assert 0 < large.shard.offsets.offset_count < MANY
    large.coordinator.fail_over()
    assert large.answers.one is ErrorCode.NOT_COORDINATOR
    assert list(large.shard.being_deleted) == [GROUP]
    assert large.coordinator.commit(6).one == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    large.answers.clear()
    large.delete()  # the client tries again
    large.write()
    assert large.answers.one is ErrorCode.NONE
    assert large.coordinator.group_ids == []
    large.coordinator.fail_over()
    assert large.coordinator.group_ids == []
    assert not large.shard.being_deleted


def test_a_late_end_of_one_deletion_does_not_end_the_next_one() -> None:
    """Its begin would stay the last record: the next coordinator would delete later commits."""
    large = LargeGroup()
    coordinator = large.coordinator
    large.delete()
    coordinator.commits_at_once = False
    large.write()
    large.shard.answer_deletion(GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    ends = len(coordinator.uncommitted)
    large.write()  # again, because the first records are late
    for _ in range(ends):
        coordinator.commit_one()
    assert coordinator.commit(6).one == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    coordinator.commit_all()
    assert not large.shard.being_deleted
    coordinator.commits_at_once = True
    assert coordinator.commit(7).one == ALL
    coordinator.fail_over()
    assert not large.shard.being_deleted
    assert coordinator.committed() == 7


def test_deletions_are_numbered() -> None:
    large = LargeGroup()
    large.delete()
    first = large.shard.deletion_number(GROUP)
    assert first
    large.write()
    assert large.shard.deletion_number(GROUP) is None
    for partition in range(MANY):
        large.coordinator.commit(5, partition=partition)
    large.answers.clear()
    large.delete()
    assert large.shard.deletion_number(GROUP) not in (None, first)


def test_a_deletion_in_parts_that_does_not_begin_leaves_the_group_as_it_is() -> None:
    large = LargeGroup()
    outcome = large.shard.delete_group(GROUP, large.answers)
    assert isinstance(outcome, Write)
    assert outcome.on_failed is not None
    large.shard.refused(outcome.records, large.coordinator.now)
    outcome.on_failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, large.coordinator.now)
    assert large.answers.one is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not large.shard.being_deleted
    assert large.coordinator.commit(6).one == ALL


def test_offsets_of_a_large_group_expire_in_pieces_and_then_the_group() -> None:
    coordinator = LargeGroup().coordinator
    shard = coordinator.shard
    coordinator.wait(8 * DAY_S)
    for _ in range(2):
        for places in shard.offsets.place_pieces(GROUP):
            outcome = shard.expire(GROUP, coordinator.now_ms, places)
            if outcome is not None:
                assert len(outcome.records) <= PIECE_OFFSETS + 1
                coordinator.do(outcome)
    assert coordinator.group_ids == []


# Expiry (KIP-211)


def test_offsets_expire_after_the_group_became_empty_and_then_the_group() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=10 * MINUTE_MS))
    (member,) = coordinator.stable(
        protocols=[("range", subscription("t"))], session_s=1800, rebalance_s=1800
    )
    coordinator.commit(5, member=member)
    coordinator.wait(1200)
    expire(coordinator)
    assert coordinator.committed() == 5  # consumed
    coordinator.leave(member.member_id)
    coordinator.wait(599)
    expire(coordinator)
    assert coordinator.committed() == 5
    coordinator.wait(2)
    expire(coordinator)
    assert coordinator.committed() is None
    assert coordinator.group_ids == []


def test_a_live_group_and_its_offsets_do_not_expire() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=MINUTE_MS))
    (member,) = coordinator.stable(
        protocols=[("range", subscription("t"))], session_s=1800, rebalance_s=1800
    )
    coordinator.commit(5, member=member)
    coordinator.wait(900)
    expire(coordinator)
    assert coordinator.committed() == 5
    assert coordinator.state == "Stable"
    assert coordinator.heartbeat(member) is ErrorCode.NONE


def test_the_next_coordinator_keeps_offsets_from_the_time_at_which_the_group_became_empty() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=10 * MINUTE_MS))
    (member,) = coordinator.stable(
        protocols=[("range", subscription("t"))], session_s=1800, rebalance_s=1800
    )
    coordinator.commit(5, member=member)
    coordinator.wait(1200)
    coordinator.leave(member.member_id)
    coordinator.wait(300)
    coordinator.fail_over()
    coordinator.wait(299)
    expire(coordinator)
    assert coordinator.committed() == 5
    coordinator.wait(2)
    expire(coordinator)
    assert coordinator.committed() is None


def test_offsets_of_all_topics_that_any_member_consumes_are_kept() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=MINUTE_MS))
    coordinator.topic_ids["u"] = bytes(15) + b"\3"
    waiting = [
        coordinator.join(
            protocols=[("range", subscription(topic))], session_s=1800, rebalance_s=1800
        )
        for topic in ("t", "u")
    ]
    coordinator.wait(6)
    members = [each.one for each in waiting]
    coordinator.assign(members)
    coordinator.commit(5, member=members[0])
    coordinator.commit(6, topic="u", member=members[1])
    coordinator.wait(61)
    expire(coordinator)
    assert (coordinator.committed(), coordinator.committed("u")) == (5, 6)


def test_the_record_of_a_live_group_without_offsets_does_not_expire() -> None:
    """Without it, the next coordinator would begin with the first generation again."""
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=MINUTE_MS))
    (member,) = coordinator.stable(session_s=1800, rebalance_s=1800)
    coordinator.wait(900)
    assert coordinator.shard.expire(GROUP, coordinator.now_ms) is None
    coordinator.fail_over()
    assert coordinator.heartbeat(member) is ErrorCode.NONE


def test_offsets_of_topics_that_no_member_consumes_expire_in_a_live_group() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=MINUTE_MS))
    coordinator.topic_ids["u"] = bytes(15) + b"\3"
    (member,) = coordinator.stable(
        protocols=[("range", subscription("t"))], session_s=1800, rebalance_s=1800
    )
    coordinator.commit(5, member=member)
    coordinator.commit(6, topic="u", member=member)
    coordinator.wait(61)
    expire(coordinator)
    assert (coordinator.committed(), coordinator.committed("u")) == (5, None)


def test_an_offset_that_is_committed_again_does_not_expire_before_that_is_committed() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=MINUTE_MS))
    coordinator.commit(5)
    coordinator.wait(61)
    coordinator.commits_at_once = False
    coordinator.commit(6)
    assert coordinator.shard.expire(GROUP, coordinator.now_ms) is None
    coordinator.commit_all()
    assert coordinator.committed() == 6


def test_an_offset_with_its_own_retention_expires_by_that() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=1000 * MINUTE_MS))
    coordinator.commit(5, retention_ms=MINUTE_MS)
    coordinator.wait(59)
    expire(coordinator)
    assert coordinator.committed() == 5
    coordinator.wait(2)
    expire(coordinator)
    assert coordinator.committed() is None


def test_an_offset_can_be_retained_without_an_end() -> None:
    coordinator = Coordinator(GroupConfigs(offsets_retention_ms=MINUTE_MS))
    assert coordinator.commit(5, retention_ms=2**63 - 1).one == [ErrorCode.NONE]
    coordinator.wait(1e9)
    expire(coordinator)
    assert coordinator.committed() == 5


def test_a_group_that_was_only_told_a_member_id_is_forgotten() -> None:
    coordinator = Coordinator()
    coordinator.join(needs_member_id=True)
    expire(coordinator)
    assert coordinator.group_ids == [GROUP]  # its member may still join
    coordinator.wait(11)
    expire(coordinator)
    assert coordinator.group_ids == []


def test_a_group_with_records_that_are_not_committed_yet_is_not_forgotten() -> None:
    """Its next generation would be the first one again, after others in the log."""
    coordinator = Coordinator()
    coordinator.commits_at_once = False
    joined = coordinator.join()
    coordinator.wait(3)
    coordinator.sync(joined.one, {joined.one.member_id: b"a"})
    coordinator.leave_without_answer(joined.one.member_id)
    expire(coordinator)
    assert coordinator.group_ids == [GROUP]
    coordinator.commit_all()
    expire(coordinator)
    coordinator.commit_all()
    assert coordinator.group_ids == []


def test_a_group_that_is_recorded_behind_its_deletion_stays() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    coordinator.leave(member.member_id)
    coordinator.commits_at_once = False
    coordinator.do(coordinator.shard.delete_group(GROUP))
    joined = coordinator.join()
    coordinator.wait(3)
    coordinator.sync(joined.one, {joined.one.member_id: b"a"})
    coordinator.leave_without_answer(joined.one.member_id)
    generation = coordinator.group.generation
    coordinator.commit_all()
    assert coordinator.group.generation == generation
    coordinator.fail_over()
    assert coordinator.group.generation == generation


# Records of others


@pytest.mark.parametrize(
    "record",
    [
        CoordinatorRecord(b"", b""),
        CoordinatorRecord(b"\0\1\0\1g\0\1t\0\0\0", b"x"),  # truncated key
        CoordinatorRecord(b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\3x"),  # malformed value
        CoordinatorRecord(encode_key(GroupKey("g")), b"\0\3\0"),
        CoordinatorRecord(b"\0\7whatever", b"x"),  # a newer protocol
    ],
)
def test_records_that_make_no_sense_do_not_stop_a_load(record: CoordinatorRecord) -> None:
    coordinator = Coordinator()
    coordinator.log.append(record)
    coordinator.commit(5)
    coordinator.fail_over()
    assert coordinator.committed() == 5


def test_a_write_of_nothing_is_an_answer() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    outcome = coordinator.shard.delete_offsets(GROUP, [("t", 7)])
    assert not isinstance(outcome, Write)
    assert outcome == ALL


# Slices


def recorded(coordinator: Coordinator, groups: int, members: int = 3) -> None:
    """Add the records of stable groups to the log."""
    for number in range(groups):
        metadata = GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader=f"{number}-0",
            current_state_timestamp=5,
            members=[
                MemberMetadata(member_id=f"{number}-{index}", session_timeout=10_000)
                for index in range(members)
            ],
        )
        key = GroupKey(f"group-{number}")
        coordinator.log.append(CoordinatorRecord(encode_key(key), encode_group_value(metadata)))


def replayed(coordinator: Coordinator) -> GroupShard:
    """Return a new shard that is not restored yet."""
    shard = coordinator.new_shard()
    for record in coordinator.log:
        if (long := shard.replay(record, 0.0)) is not None:
            at_once(long)
    return shard


def test_groups_are_restored_and_closed_one_by_one() -> None:
    coordinator = Coordinator()
    recorded(coordinator, 10)
    shard = replayed(coordinator)
    counts = [len(shard.groups) for _ in stepped(shard.restore(coordinator.now))]
    assert counts[:10] == list(range(1, 11))
    assert list(shard.groups) == [f"group-{number}" for number in range(10)]
    shard.loaded(coordinator.now, coordinator.now_ms)
    counts = [len(shard.groups) for _ in stepped(shard.unload())]
    assert counts[:10] == list(reversed(range(10)))
    assert shard.next_due == inf
    assert coordinator.budget.used_bytes == 0


def test_the_sessions_of_restored_members_begin_when_requests_are_handled() -> None:
    coordinator = Coordinator()
    recorded(coordinator, 1)
    shard = replayed(coordinator)
    at_once(shard.restore(100.0))
    shard.loaded(108.0, 108_000)
    shard.due(110.0, 110_000)
    assert len(shard.groups["group-0"].members) == 3
    assert shard.heartbeat(111.0, "group-0", "0-1", None, 3) is ErrorCode.NONE
    shard.due(118.0, 118_000)
    assert list(shard.groups["group-0"].members.by_id) == ["0-1"]


def test_few_timeouts_are_called_at_once_and_all_of_them_in_the_end() -> None:
    coordinator = Coordinator()
    recorded(coordinator, 300, 1)
    shard = replayed(coordinator)
    at_once(shard.restore(100.0))
    shard.loaded(100.0, 100_000)
    written = []
    while shard.next_due <= 120.0:
        written.append(len(shard.due(120.0, 120_000)))
    assert sum(written) == 300
    assert max(written) == CALLED_AT_ONCE


def test_timeouts_wait_for_the_next_slice() -> None:
    coordinator = Coordinator()
    recorded(coordinator, 3, 1)
    shard = replayed(coordinator)
    at_once(shard.restore(100.0))
    shard.loaded(100.0, 100_000)
    assert [len(shard.due(120.0, 120_000, lambda: True)) for _ in range(4)] == [1, 1, 1, 0]


MEMBER = MemberMetadata(member_id="a", session_timeout=10_000)


@pytest.mark.parametrize(
    ("generation", "members"),
    [
        (3, [MEMBER, MEMBER]),
        (3, [MEMBER, MemberMetadata(member_id="a", group_instance_id="x", session_timeout=1)]),
        (
            3,
            [
                MemberMetadata(member_id=name, group_instance_id="x", session_timeout=10_000)
                for name in "ab"
            ],
        ),
        (2**31 - 1, [MEMBER]),
        (2**31 - 1, []),
        (-(2**31), [MEMBER]),
        (3, [MemberMetadata(member_id="", session_timeout=-1, rebalance_timeout=-5)]),
    ],
)
def test_a_record_that_no_coordinator_wrote_does_not_end_the_worker(
    generation: int, members: list[MemberMetadata]
) -> None:
    coordinator = Coordinator()
    metadata = GroupMetadataValue(
        protocol_type="consumer",
        generation=generation,
        protocol="range" if members else None,
        leader="a" if members else None,
        members=members,
    )
    record = CoordinatorRecord(encode_key(GroupKey(GROUP)), encode_group_value(metadata))
    coordinator.log.append(record)
    coordinator.fail_over()
    coordinator.wait(20)
    joined = coordinator.join(instance_id="x")
    coordinator.wait(70)
    assert joined.one.code is ErrorCode.NONE
    coordinator.wait(70)
    at_once(coordinator.shard.unload())
    assert coordinator.budget.used_bytes == 0


def test_a_group_above_its_size_limit_is_rebalanced_after_it_is_loaded() -> None:
    coordinator = Coordinator(GroupConfigs(GroupLimits(max_size=2)))
    recorded(coordinator, 1)
    shard = replayed(coordinator)
    at_once(shard.restore(100.0))
    shard.loaded(105.0, 105_000)
    shard.due(105.0, 105_000)
    assert shard.groups["group-0"].state.value == "PreparingRebalance"


# Clients of uncommitted records


def test_uncommitted_records_of_a_group_are_those_of_the_request() -> None:
    """Not of the group's client, which is not known after a load: all such groups would be one."""
    coordinator = Coordinator()
    waiting = coordinator.join()
    coordinator.wait(3)
    joined = waiting.one
    request = SyncRequest(
        GROUP, joined.member_id, None, joined.generation, "consumer", joined.protocol, {}, "a"
    )
    synced = coordinator.shard.sync(coordinator.now, request, Answers())
    assert isinstance(synced, Write)
    assert synced.client == "a"
    coordinator.do(synced)
    leaving = [LeavingMember(joined.member_id, None)]
    left = coordinator.shard.leave(coordinator.now, GROUP, leaving, "b")
    assert isinstance(left, Write)
    assert left.client == "b"
    coordinator.do(left)
    deleted = coordinator.shard.delete_group(GROUP, client="c")
    assert isinstance(deleted, Write)
    assert deleted.client == "c"


# Refused records


def test_a_group_that_became_empty_while_nothing_could_be_written_is_recorded_later() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    outcome = coordinator.shard.leave(
        coordinator.now, GROUP, [LeavingMember(member.member_id, None)]
    )
    assert isinstance(outcome, Write)
    coordinator.shard.refused(outcome.records, coordinator.now)
    coordinator.wait(WRITE_RETRY_S - 1)
    written = len(coordinator.log)
    coordinator.wait(2)
    assert len(coordinator.log) == written + 1
    coordinator.fail_over()
    assert coordinator.state == "Empty"
    assert coordinator.group.generation == 2


def test_a_refused_record_is_not_written_again_once_the_group_is_being_deleted() -> None:
    """The next coordinator would take the group for one that stays."""
    large = LargeGroup()
    coordinator = large.coordinator
    (member,) = coordinator.stable()
    outcome = large.shard.leave(coordinator.now, GROUP, [LeavingMember(member.member_id, None)])
    assert isinstance(outcome, Write)
    large.shard.refused(outcome.records, coordinator.now)
    large.delete()
    written = len(coordinator.log)
    coordinator.wait(WRITE_RETRY_S + 1)
    assert len(coordinator.log) == written


def test_a_refused_record_is_not_written_again_once_the_group_has_members() -> None:
    coordinator = Coordinator()
    (member,) = coordinator.stable()
    outcome = coordinator.shard.leave(
        coordinator.now, GROUP, [LeavingMember(member.member_id, None)]
    )
    assert isinstance(outcome, Write)
    coordinator.shard.refused(outcome.records, coordinator.now)
    coordinator.stable()
    written = len(coordinator.log)
    coordinator.wait(WRITE_RETRY_S)
    assert len(coordinator.log) == written
