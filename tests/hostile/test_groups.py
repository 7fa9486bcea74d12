"""Attacks on groups by clients without rights: long names, repetitions, many members."""

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from metaquorum.dataplane.coordinators.client_budget import MAX_NEW_ID_BYTES
from metaquorum.dataplane.coordinators.group.classic_group import ClassicGroup
from metaquorum.dataplane.coordinators.group.rebalancing import MAX_MEMBERS, GroupState
from metaquorum.dataplane.coordinators.group.requests import (
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
)
from metaquorum.wire.messages.describe_group_activity import DescribeGroupActivityRequest
from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from metaquorum.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from metaquorum.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from tests.dataplane.serving import RawClient, Served, in_trio, request, serving
from tests.hostile.slices import MAX_SLICE_S, CountedClock, Watch, WatchedNetwork
from tests.hostile.test_slices import ATTEMPTS, watched_answer

LONGEST: Final = 32_767  # bytes of a name in a request
COMMIT_VERSION: Final = 9  # names its topics
OLD_JOIN: Final = 3  # gives new members no id to join with
SESSION_MS: Final = 1_800_000
LATE_MS: Final = 6_000  # longer than all members need to join
SUBSCRIPTION: Final = b"\0\0\0\0\0\0"
PROTOCOLS: Final = (Protocol("range", SUBSCRIPTION),)


@asynccontextmanager
async def coordinator(
    folder: Path, watch: Watch | None = None, partitions: int = 1
) -> AsyncIterator[tuple[Served, RawClient]]:
    """Yield a node with the topic `t` that coordinates groups, and a client."""
    network, clock = (None, None) if watch is None else (WatchedNetwork(watch), CountedClock())
    configs = {"offsets_topic_num_partitions": partitions, "group_initial_rebalance_delay_ms": 0}
    async with serving(folder, network=network, clock=clock, **configs) as served:  # type: ignore[arg-type]
        client = await served.connect()
        await client.create("t")
        find = FindCoordinatorRequest(coordinator_keys=["g"])
        await client.call(ApiKey.FIND_COORDINATOR, find)
        while len(served.worker.groups.shards) < partitions:
            await trio.lowlevel.checkpoint()
        yield served, client


def join_of(
    group_id: str, member_id: str = "", instance_id: str | None = None, metadata: bytes = b""
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata or SUBSCRIPTION)],
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
    )


def commit_of(group_id: str, count: int = 1, **more: Any) -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)] * count
    topics = [OffsetCommitRequestTopic(name="t", partitions=rows)]
    return OffsetCommitRequest(group_id=group_id, topics=topics, **more)


def codes_of(commit: Any) -> set[int]:
    return {row.error_code for topic in commit.topics for row in topic.partitions}


def log_bytes(served: Served) -> int:
    (partition,) = served.worker.replica_manager.of_topic("__consumer_offsets")
    return partition.log.size_bytes


# Names


@pytest.mark.parametrize("version", [OLD_JOIN, 5, 9])
@in_trio
async def test_a_long_client_id_closes_no_connection_of_other_members(
    tmp_path: Path, version: int
) -> None:
    """The leader's response has the ids of all members, which begin with those of their clients."""
    async with coordinator(tmp_path) as (served, victim):
        joined = await victim.call(ApiKey.JOIN_GROUP, join_of("g"), OLD_JOIN)
        hostile = await served.connect()
        asked = join_of("g", instance_id="i" * MAX_NEW_ID_BYTES if version > OLD_JOIN else None)
        await hostile.send(encode_request(ApiKey.JOIN_GROUP, version, 1, "c" * LONGEST, asked))
        group = served.worker.groups.shards[0].groups["g"]
        while len(group.members) < 2:
            await trio.lowlevel.checkpoint()
        again = join_of("g", joined.member_id)
        led = await victim.call(ApiKey.JOIN_GROUP, again, 5)
        assert led.error_code == ErrorCode.NONE
        assert len(led.members) == 2
        assert (await hostile.answer(ApiKey.JOIN_GROUP, version)).error_code == ErrorCode.NONE
        sync = SyncGroupRequest(
            group_id="g", member_id=joined.member_id, generation_id=led.generation_id
        )
        assert not (await victim.call(ApiKey.SYNC_GROUP, sync, 3)).error_code


@in_trio
async def test_a_short_commit_does_not_write_gigabytes(tmp_path: Path) -> None:
    """The key of each record has the group id, which the request has once."""
    async with coordinator(tmp_path) as (served, client):
        for group_id, count in (("g" * MAX_NEW_ID_BYTES, 10_000), ("g" * 2000, 50_000)):
            answer = await client.call(
                ApiKey.OFFSET_COMMIT, commit_of(group_id, count), COMMIT_VERSION
            )
            assert codes_of(answer) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert log_bytes(served) == 0
        few = await client.call(
            ApiKey.OFFSET_COMMIT, commit_of("g" * MAX_NEW_ID_BYTES, 20), COMMIT_VERSION
        )
        assert codes_of(few) == {ErrorCode.NONE}
        before = log_bytes(served)
        place = OffsetDeleteRequestPartition(partition_index=0)
        topics = [OffsetDeleteRequestTopic(name="t", partitions=[place] * 10_000)]
        asked = OffsetDeleteRequest(group_id="g" * MAX_NEW_ID_BYTES, topics=topics)
        answer = await client.call(ApiKey.OFFSET_DELETE, asked)
        assert answer.error_code == ErrorCode.RECORD_LIST_TOO_LARGE
        assert log_bytes(served) == before


@in_trio
async def test_the_longest_retention_is_one_that_a_record_can_have(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as (served, client):
        asked = commit_of("g", retention_time_ms=2**63 - 1)
        assert codes_of(await client.call(ApiKey.OFFSET_COMMIT, asked, 4)) == {ErrorCode.NONE}
        assert served.worker.groups.shards[0].offsets.offset_count == 1


# Repetitions


@in_trio
async def test_what_is_named_several_times_is_in_the_response_once(tmp_path: Path) -> None:
    """A request of 2 kB that described a group with 1 MB of members 1000 times had 1 GB."""
    async with coordinator(tmp_path) as (_, client):
        await client.call(ApiKey.OFFSET_COMMIT, commit_of("g"), COMMIT_VERSION)
        described = await client.call(
            ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g", "h", "g"])
        )
        assert [each.group_id for each in described.groups] == ["g", "h"]
        active = await client.call(
            ApiKey.DESCRIBE_GROUP_ACTIVITY, DescribeGroupActivityRequest(groups=["g", "g"])
        )
        assert [each.group_id for each in active.groups] == ["g"]
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0, 0])
        groups = [
            OffsetFetchRequestGroup(group_id="g", topics=topics)
            for topics in ([topic, topic], [topic], None, None)
        ]
        fetched = await client.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups), 9)
        rows = [[len(topic.partitions) for topic in group.topics] for group in fetched.groups]
        assert rows == [[1, 0], [0], [1]]


# Waiting requests


@in_trio
async def test_a_waiting_sync_holds_no_assignments(tmp_path: Path) -> None:
    """Only the leader's are used; those of the others had the size of the largest frame."""
    count = 1000
    async with coordinator(tmp_path) as (served, leader):
        first = await leader.call(ApiKey.JOIN_GROUP, join_of("g", instance_id="leader"), 5)
        shard = served.worker.groups.shards[0]
        hostile = await served.connect()
        await hostile.ask(ApiKey.JOIN_GROUP, join_of("g", instance_id="hostile"), 5)
        while len(shard.groups["g"].members) < 2:
            await trio.lowlevel.checkpoint()
        await leader.call(ApiKey.JOIN_GROUP, join_of("g", first.member_id, "leader"), 5)
        joined = await hostile.answer(ApiKey.JOIN_GROUP, 5)
        assert shard.groups["g"].state is GroupState.COMPLETING_REBALANCE
        assignments = [
            SyncGroupRequestAssignment(member_id=f"m{number}", assignment=bytes(100))
            for number in range(count)
        ]
        await hostile.ask(
            ApiKey.SYNC_GROUP,
            SyncGroupRequest(
                group_id="g",
                member_id=joined.member_id,
                group_instance_id="hostile",
                generation_id=joined.generation_id,
                assignments=assignments,
            ),
            3,
        )
        del assignments
        member = shard.groups["g"].members.by_id[joined.member_id]
        while member.sync is None or served.worker.slicer.has_background_work:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        held = [each for each in gc.get_objects() if type(each) is SyncGroupRequestAssignment]
        assert not held


# Slices of the event loop


async def fill(
    served: Served,
    group_id: str,
    count: int,
    protocols_of: Callable[[int], tuple[Protocol, ...]] = lambda _: PROTOCOLS,
) -> ClassicGroup:
    """Let static members join whose connections have ended, and their first generation begin."""
    groups, clock = served.worker.groups, served.worker.clock
    shard = groups.shards[0]
    refused: list[Any] = []
    for number in range(count):
        asked = JoinRequest(
            group_id,
            "",
            f"i{number}",
            "c",
            "/127.0.0.1",
            SESSION_MS,
            SESSION_MS,
            "consumer",
            protocols_of(number),
        )
        now = clock.monotonic()
        operation = lambda shard: shard.join(now, asked, lambda answer: None)  # noqa: B023, E731
        groups.call(group_id, operation, refused.append, refused.append)
    assert {each.code for each in refused} <= {ErrorCode.GROUP_MAX_SIZE_REACHED}
    group = shard.groups[group_id]
    while group.state is GroupState.PREPARING_REBALANCE:
        await trio.sleep(0.01)
    return group


async def check_slices(
    watch: Watch, served: Served, frame_of: Callable[[int], bytes], what: str
) -> None:
    """Send a frame until its slices are short; it fails if they never are."""
    for attempt in range(ATTEMPTS):
        assert await watched_answer(watch, served, frame_of(attempt)), what
        if not (found := watch.too_long()):
            return
    pytest.fail(f"{what}: {found}")


@in_trio
async def test_no_slice_is_long_because_of_the_ids_of_groups(tmp_path: Path) -> None:
    watch = Watch()
    async with coordinator(tmp_path, watch) as (served, _):
        ids = [f"{number:05}{'g' * (LONGEST - 5)}" for number in range(64)]
        groups = [OffsetFetchRequestGroup(group_id=each, topics=[]) for each in ids]
        requests = {
            "OffsetFetch": request(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups)),
            "FindCoordinator": request(
                ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=ids)
            ),
            "OffsetCommit": request(
                ApiKey.OFFSET_COMMIT, commit_of("g" * MAX_NEW_ID_BYTES, 4000), COMMIT_VERSION
            ),
        }
        with watch.watching():
            for what, frame in requests.items():
                await check_slices(watch, served, lambda _, frame=frame: frame, what)  # type: ignore[misc]


@pytest.mark.parametrize(("protocol_count", "own_count"), [(1, 0), (64, 0), (2, 14)])
@in_trio
async def test_no_slice_of_a_large_group_is_long(
    tmp_path: Path, protocol_count: int, own_count: int
) -> None:
    """The largest group, whose members are static and have closed their connections.

    Each member prefers `own_count` protocols of its own, and supports those of all others.
    """
    watch = Watch()
    common = tuple(Protocol(f"p{number}", SUBSCRIPTION) for number in range(protocol_count))

    def protocols_of(member: int) -> tuple[Protocol, ...]:
        own = [Protocol(f"{member}-{number}", SUBSCRIPTION) for number in range(own_count)]
        return (*own, *common)

    async with coordinator(tmp_path, watch) as (served, _):
        with watch.watching():
            group = await fill(served, "g", MAX_MEMBERS + 10, protocols_of)
            assert len(group.members) == MAX_MEMBERS
            assert not watch.too_long()
            leader = group.members.leader
            assert leader is not None
            sync = SyncGroupRequest(
                group_id="g",
                member_id=leader,
                group_instance_id=group.members.by_id[leader].instance_id,
                generation_id=group.generation,
                protocol_type="consumer",
                protocol_name=group.protocol,
            )
            unknown = [MemberIdentity(member_id="x")] * 90_000
            everyone = [
                MemberIdentity(member_id="", group_instance_id=f"i{number}")
                for number in range(1, MAX_MEMBERS)
            ]
            place = OffsetDeleteRequestPartition(partition_index=0)
            topics = [OffsetDeleteRequestTopic(name="t", partitions=[place])]
            frames = {
                "LeaveGroup of strangers": request(
                    ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="g", members=unknown)
                ),
                "SyncGroup": request(ApiKey.SYNC_GROUP, sync),
                "OffsetDelete": request(
                    ApiKey.OFFSET_DELETE, OffsetDeleteRequest(group_id="g", topics=topics)
                ),
                "JoinGroup of a static member": request(
                    ApiKey.JOIN_GROUP, _same_protocols(join_of("g", "", "i0"), protocols_of(0))
                ),
                "JoinGroup with other metadata": request(
                    ApiKey.JOIN_GROUP,
                    _same_protocols(
                        join_of("g", "", "i0"),
                        (*protocols_of(0)[:-1], Protocol(f"p{protocol_count - 1}", bytes(7))),
                    ),
                ),
                "LeaveGroup": request(
                    ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="g", members=everyone)
                ),
            }
            for what, frame in frames.items():
                await check_slices(watch, served, lambda _, frame=frame: frame, what)  # type: ignore[misc]
            assert len(group.members) == 1


@pytest.mark.parametrize("is_assigned", [False, True])
@in_trio
async def test_no_slice_is_long_when_all_members_are_late(
    tmp_path: Path, is_assigned: bool
) -> None:
    """All SyncGroups, or all JoinGroups of a rebalance, are missing at its timeout."""
    watch = Watch()
    async with coordinator(tmp_path, watch) as (served, _):
        groups, now = served.worker.groups, served.worker.clock.monotonic
        shard = groups.shards[0]

        def ask(operation: Callable[[Any], Any]) -> None:
            groups.call("g", operation, _ignore, _ignore)

        for number in range(MAX_MEMBERS):
            asked = JoinRequest(
                "g",
                "",
                None,
                f"c{number}",
                "/127.0.0.1",
                LATE_MS,
                SESSION_MS,
                "consumer",
                PROTOCOLS,
                needs_member_id=False,
            )
            ask(lambda shard, asked=asked: shard.join(now(), asked, _ignore))  # type: ignore[misc]
        group = shard.groups["g"]
        while group.state is GroupState.PREPARING_REBALANCE:
            await trio.sleep(0.01)
        ids = list(group.members.by_id)
        if is_assigned:
            for member_id in ids:
                sync = SyncRequest("g", member_id, None, 1, None, None, {})
                ask(lambda shard, sync=sync: shard.sync(now(), sync, _ignore))  # type: ignore[misc]
            assert group.state is GroupState.STABLE
            ask(lambda shard: shard.leave(now(), "g", [LeavingMember(ids[0], None)]))
        assert len(group.members) >= MAX_MEMBERS - 1
        with watch.watching():
            watch.start()
            while len(group.members):
                await trio.sleep(0.01)
            assert not watch.too_long()


def _same_protocols(asked: JoinGroupRequest, protocols: tuple[Protocol, ...]) -> JoinGroupRequest:
    asked.protocols = [
        JoinGroupRequestProtocol(name=each.name, metadata=each.metadata) for each in protocols
    ]
    return asked


@in_trio
async def test_no_slice_is_long_because_of_subscriptions(tmp_path: Path) -> None:
    """64 subscriptions to 10,000 topics each, of one member."""
    watch = Watch()
    names = [
        b"".join(b"\0\4%04d" % (topic * 7 % 10_000) for topic in range(first, first + 10_000))
        for first in range(64)
    ]
    protocols = tuple(
        Protocol(f"p{number}", b"\0\0\0\0\x27\x10" + each) for number, each in enumerate(names)
    )
    async with coordinator(tmp_path, watch) as (served, client):
        await client.call(ApiKey.OFFSET_COMMIT, commit_of("g"), COMMIT_VERSION)
        await fill(served, "g", 1, lambda _: protocols)
        place = OffsetDeleteRequestPartition(partition_index=0)
        topics = [OffsetDeleteRequestTopic(name="t", partitions=[place])]
        frame = request(ApiKey.OFFSET_DELETE, OffsetDeleteRequest(group_id="g", topics=topics))
        with watch.watching():
            await check_slices(watch, served, lambda _: frame, "OffsetDelete")


def begin_sessions(served: Served, count: int, timeout_ms: int) -> None:
    """Let sessions begin that all end at the same time, even if this takes longer."""
    groups, now = served.worker.groups, served.worker.clock.monotonic()
    for number in range(count):
        asked = JoinRequest(
            f"g{number}",
            "",
            "i",
            "c",
            "/127.0.0.1",
            SESSION_MS,
            timeout_ms,
            "consumer",
            PROTOCOLS,
        )
        shard = groups.shard(asked.group_id)
        shard.join(now, asked, lambda answer: None)
        (member_id,) = shard.groups[asked.group_id].members.by_id
        shard.drop_join(now, asked.group_id, member_id)
    for number in range(count):  # let the runtime know when its shards are due
        groups.call(f"g{number}", lambda _: ErrorCode.NONE, _ignore, _ignore)


@in_trio
async def test_sessions_that_end_in_the_same_millisecond_end_in_slices(tmp_path: Path) -> None:
    """Clients choose their session timeouts, so the ends of many, each a rebalance, coincide."""
    watch = Watch()
    async with coordinator(tmp_path, watch, partitions=50) as (served, _):
        groups = served.worker.groups
        groups.configs.groups.min_session_timeout_ms = 1
        with watch.watching():
            watch.start()
            begin_sessions(served, 6000, 1000)
            while any(
                len(group.members)
                for shard in groups.shards.values()
                for group in shard.groups.values()
            ):
                await trio.sleep(0.05)
        # Without slices: 64 sessions of each of the 50 shards in one step, some 30 ms. With
        # them, a step has a few milliseconds of work.
        assert not [each for each in watch.longest if each[0] >= 2 * MAX_SLICE_S], watch.longest


def _ignore(answer: object) -> None: ...
