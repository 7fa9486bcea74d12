"""Offsets and splits without I/O, and plans of topics on a node and on a real Kafka."""

import logging
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.producer import ProducerRecord
from metaquorum.client.socket_transport import BlockingAdmin, connect
from metaquorum.spark.offset_ranges import UNKNOWN, OffsetRange, ReadPlan, TopicFacts
from metaquorum.spark.options import (
    MAX_RANGES,
    Connecting,
    FetchOptions,
    Limit,
    OffsetsByPartition,
    OptionError,
    Position,
    ReadOptions,
    Subscribe,
    Timestamp,
    TimestampsByPartition,
)
from metaquorum.spark.planning import (
    NO_OFFSET,
    PartitionSnapshot,
    PlanError,
    check_partitions,
    make_plan,
    resolve,
    split_ranges,
)
from metaquorum.wire.primitives.types import ZERO_UUID, uuid_to_text
from tests.metaquorum.spark.topics import new_topic, send
from tests.nodes import PATIENCE_S, KafkaNode, Peer, unique

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def options(
    starting: Limit = Position.EARLIEST,
    ending: Limit = Position.LATEST,
    *,
    fail_on_data_loss: bool = True,
    latest_if_no_match: bool = False,
    **splits: int | None,
) -> ReadOptions:
    return ReadOptions(
        FetchOptions(Connecting("localhost:9092"), fail_on_data_loss=fail_on_data_loss),
        Subscribe(("t",)),
        starting,
        ending,
        latest_if_no_match,
        **splits,
    )


def at(*offsets: int) -> OffsetsByPartition:
    return OffsetsByPartition({TopicPartition("t", n): each for n, each in enumerate(offsets)})


# First and end offsets of partitions

LOG = PartitionSnapshot(log_start=10, end=50)


def timed(start: int | None, end: int | None = None) -> PartitionSnapshot:
    return PartitionSnapshot(10, 50, at_starting_timestamp=start, at_ending_timestamp=end)


@pytest.mark.parametrize(
    ("snapshot", "asked", "expected"),
    [
        (LOG, options(), (10, 50)),
        (LOG, options(at(-2), at(-1)), (10, 50)),
        (LOG, options(at(20), at(30)), (20, 30)),
        (LOG, options(at(20), at(20)), (20, 20)),
        (LOG, options(at(50), at(50)), (50, 50)),
        (LOG, options(at(10)), (10, 50)),
        (PartitionSnapshot(0, 0), options(), (0, 0)),
        (timed(20), options(Timestamp(5)), (20, 50)),
        (timed(20, 30), options(Timestamp(5), Timestamp(6)), (20, 30)),
        (timed(20, NO_OFFSET), options(Timestamp(5), Timestamp(6)), (20, 50)),
        (timed(NO_OFFSET), options(Timestamp(5), latest_if_no_match=True), (50, 50)),
        (timed(None, 30), options(at(-2), TimestampsByPartition({P0: 6})), (10, 30)),
        (LOG, options(at(5), at(5)), (5, 5)),
        (LOG, options(Position.EARLIEST, at(10)), (10, 10)),
    ],
)
def test_offsets_that_are_read(
    snapshot: PartitionSnapshot, asked: ReadOptions, expected: tuple[int, int]
) -> None:
    assert resolve(P0, snapshot, asked) == expected


@pytest.mark.parametrize(
    ("starting", "ending", "words", "rest"),
    [
        (at(5), Position.LATEST, "offsets 5 to 9 are deleted: the log starts at 10", (5, 50)),
        (at(5), at(8), "offsets 5 to 7 are deleted", (5, 8)),
        (at(20), at(60), "offsets 50 to 59 are beyond the end of the log", (20, 50)),
        (at(51), Position.LATEST, "offset 51 is beyond the end of the log at 50", (50, 50)),
        (at(60), at(70), "offset 60 is beyond the end", (50, 50)),
        (Position.EARLIEST, at(51), "offsets 50 to 50 are beyond", (10, 50)),
        (Position.EARLIEST, at(5), "the offsets before 5 are deleted: the log starts", (5, 5)),
    ],
)
def test_offsets_that_the_log_does_not_have(
    starting: Limit,
    ending: Limit,
    words: str,
    rest: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those before its start stay in the range, so that its reader reports them."""
    with pytest.raises(PlanError, match=f"partition t-0: {words}.*failOnDataLoss"):
        resolve(P0, LOG, options(starting, ending))
    with caplog.at_level(logging.WARNING):
        assert resolve(P0, LOG, options(starting, ending, fail_on_data_loss=False)) == rest
    assert words in caplog.text


def test_a_timestamp_without_a_record_is_an_error_unless_told_otherwise() -> None:
    with pytest.raises(PlanError, match=r"t-0 has no record at or after .* 77; set startingOff"):
        resolve(P0, timed(NO_OFFSET), options(Timestamp(77)))
    with pytest.raises(PlanError, match="timestamp 78"):
        resolve(P0, timed(NO_OFFSET), options(TimestampsByPartition({P0: 78})))


def test_a_range_that_ends_before_it_starts_is_an_error() -> None:
    with pytest.raises(PlanError, match="starting offset 30 is above the ending offset 20"):
        resolve(P0, timed(30, 20), options(Timestamp(9), Timestamp(5)))


def test_offsets_by_partition_are_for_all_that_are_read() -> None:
    check_partitions(at(1, 2), "starting", [P1, P0])
    check_partitions(Position.EARLIEST, "starting", [P1, P0])
    with pytest.raises(
        OptionError, match=r"startingOffsets must .* -1 for latest .* not name t-1$"
    ):
        check_partitions(at(1), "starting", [P0, P1])
    by_time = TimestampsByPartition({P0: 1, TopicPartition("u", 3): 1})
    with pytest.raises(OptionError, match=r"endingOffsetsByTimestamp .* it names u-3, not read$"):
        check_partitions(by_time, "ending", [P0])


# Splits

Row = tuple[str, int, int, int]


def ranges_of(rows: list[Row]) -> list[OffsetRange]:
    return [OffsetRange(*row) for row in rows]


def rows_of(ranges: list[OffsetRange]) -> list[Row]:
    return [(each.topic, each.partition, each.start, each.end) for each in ranges]


def split(rows: list[Row], **splits: int | None) -> list[Row]:
    snapshots = {TopicPartition(*row[:2]): PartitionSnapshot(0, row[3]) for row in rows}
    return rows_of(split_ranges(ranges_of(rows), snapshots, options(**splits)))


@pytest.mark.parametrize(
    ("rows", "least", "most", "expected"),
    [
        ([("t", 0, 15, 20)], 2, None, [("t", 0, 15, 17), ("t", 0, 17, 20)]),
        (
            [("t", 0, 17, 22)],
            3,
            None,
            [("t", 0, 17, 18), ("t", 0, 18, 20), ("t", 0, 20, 22)],
        ),
        ([("t", 0, 5, 5), ("t", 1, 0, 9)], None, None, [("t", 1, 0, 9)]),
        ([("t", 0, 0, 5), ("t", 1, 0, 9)], 2, None, [("t", 0, 0, 5), ("t", 1, 0, 9)]),
        ([("t", 0, 10, 64457)], 3, 44577, [("t", 0, 10, 32233), ("t", 0, 32233, 64457)]),
        (
            [("t", 0, 36, 84643), ("t", 1, 19, 21)],
            3,
            None,
            [("t", 0, 36, 42339), ("t", 0, 42339, 84643), ("t", 1, 19, 21)],
        ),
        (
            [("t", 1, 9, 11), ("t", 2, 47, 62780), ("u", 1, 10, 11)],
            2,
            24215,
            [
                ("t", 1, 9, 11),
                ("t", 2, 47, 20958),
                ("t", 2, 20958, 41869),
                ("t", 2, 41869, 62780),
                ("u", 1, 10, 11),
            ],
        ),
        (
            [("t", 0, 45, 47), ("t", 1, 16, 19)],
            13,
            None,
            [
                ("t", 0, 45, 46),
                ("t", 0, 46, 47),
                ("t", 1, 16, 17),
                ("t", 1, 17, 18),
                ("t", 1, 18, 19),
            ],
        ),
    ],
)
def test_splits_are_those_of_the_connector(
    rows: list[Row], least: int | None, most: int | None, expected: list[Row]
) -> None:
    """As `KafkaOffsetRangeCalculator` of the connector's 4.2.0 answers."""
    assert split(rows, min_partitions=least, max_records_per_partition=most) == expected


def test_splits_by_bytes_are_in_proportion_to_the_size_of_the_log() -> None:
    snapshots = {P0: PartitionSnapshot(100, 200, size_bytes=1000), P1: PartitionSnapshot(0, 0)}
    asked = [OffsetRange("t", 0, 100, 200)]
    found = split_ranges(asked, snapshots, options(max_bytes_per_partition=400))
    assert rows_of(found) == [("t", 0, 100, 133), ("t", 0, 133, 166), ("t", 0, 166, 200)]
    assert [each.bytes_estimate for each in found] == [330, 330, 340]


def test_a_split_by_bytes_needs_sizes() -> None:
    asked, snapshots = [OffsetRange("t", 0, 0, 9)], {P0: PartitionSnapshot(0, 9)}
    with pytest.raises(PlanError, match=r"does not report the size of t-0.*maxRecordsPerPartition"):
        split_ranges(asked, snapshots, options(max_bytes_per_partition=1))
    (found,) = split_ranges(asked, snapshots, options())
    assert found.bytes_estimate == UNKNOWN


def test_offsets_that_are_deleted_go_with_the_first_that_are_not() -> None:
    asked, snapshots = [OffsetRange("t", 0, 0, 1010)], {P0: PartitionSnapshot(1000, 1010)}
    found = split_ranges(asked, snapshots, options(max_records_per_partition=5))
    assert rows_of(found) == [("t", 0, 0, 1005), ("t", 0, 1005, 1010)]
    gone = split_ranges([OffsetRange("t", 0, 0, 7)], snapshots, options(min_partitions=9))
    assert rows_of(gone) == [("t", 0, 0, 7)]


@pytest.mark.parametrize("option", ["max_records_per_partition", "max_bytes_per_partition"])
def test_a_plan_of_too_many_ranges_is_refused_before_it_is_made(option: str) -> None:
    end = 1 << 60
    snapshots = {P0: PartitionSnapshot(0, end, size_bytes=end)}
    with pytest.raises(PlanError, match=f"more than {MAX_RANGES}"):
        split_ranges([OffsetRange("t", 0, 0, end)], snapshots, options(**{option: 10}))


@st.composite
def partitions(draw: st.DrawFn) -> tuple[OffsetRange, PartitionSnapshot]:
    log_start = draw(st.integers(0, 1000))
    log_end = log_start + draw(st.integers(0, 5000))
    start = draw(st.integers(0, log_end))
    end = draw(st.integers(start, log_end))
    snapshot = PartitionSnapshot(log_start, log_end, size_bytes=draw(st.integers(0, 10**6)))
    return OffsetRange("t", 0, start, end), snapshot


@given(
    st.lists(partitions(), max_size=5),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1, 5000),
    st.none() | st.integers(1000, 10**6),
)
def test_splits_hold_every_offset_once_and_no_more_than_is_asked(
    found: list[tuple[OffsetRange, PartitionSnapshot]],
    least: int | None,
    most_records: int | None,
    most_bytes: int | None,
) -> None:
    asked, snapshots = {}, {}
    for partition, (each, snapshot) in enumerate(found):
        where = TopicPartition("t", partition)
        asked[where] = OffsetRange("t", partition, each.start, each.end)
        snapshots[where] = snapshot
    parts = split_ranges(
        asked.values(),
        snapshots,
        options(
            min_partitions=least,
            max_records_per_partition=most_records,
            max_bytes_per_partition=most_bytes,
        ),
    )
    # The plan itself refuses holes, overlaps and disorder.
    ReadPlan(None, False, tuple(parts), {"t": TopicFacts(ZERO_UUID, None)}, 0)
    bounds = {
        TopicPartition(*where): (group[0].start, group[-1].end)
        for where, group in (
            (key, list(values))
            for key, values in groupby(parts, lambda each: (each.topic, each.partition))
        )
    }
    assert bounds == {w: (e.start, e.end) for w, e in asked.items() if e.start < e.end}
    for part in parts:
        snapshot = snapshots[TopicPartition(part.topic, part.partition)]
        live = part.end - max(part.start, min(snapshot.log_start, part.end))
        assert most_records is None or live <= most_records
        per_offset = snapshot.bytes_per_offset or 0
        # Offsets are whole: some parts have one more than the share.
        assert most_bytes is None or (live - 1) * per_offset <= most_bytes


# Plans of real topics


@pytest.fixture
def cluster(either: Peer) -> Iterator[Cluster]:
    with connect(either.bootstrap, timeout_s=PATIENCE_S) as cluster:
        yield cluster


def append(cluster: Cluster, topic: str, partition: int, *timestamps_ms: int) -> None:
    send(
        cluster,
        topic,
        [
            ProducerRecord(b"x" * 100, timestamp_ms=time, partition=partition)
            for time in timestamps_ms
        ],
    )


def plan_of(cluster: Cluster, topic: str, **given: object) -> ReadPlan:
    texts = {name: str(value) for name, value in given.items()}
    return make_plan(
        cluster,
        ReadOptions.parse({"kafka.bootstrap.servers": "h", "subscribe": topic, **texts}),
    )


def plan_rows(plan: ReadPlan) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in plan.ranges]


def test_a_plan_has_what_the_cluster_tells(cluster: Cluster) -> None:
    topic = new_topic(cluster, 3)
    append(cluster, topic, 0, 1000, 2000, 3000)
    append(cluster, topic, 2, *range(1000))
    BlockingAdmin(cluster).delete_records({TopicPartition(topic, 2): 100})
    plan = plan_of(cluster, topic)
    assert plan_rows(plan) == [(0, 0, 3), (2, 100, 1000)]
    assert plan.cluster_id == BlockingAdmin(cluster).describe_cluster().cluster_id
    (described,) = BlockingAdmin(cluster).describe_topics([topic]).values()
    assert uuid_to_text(plan.topics[topic].topic_id) == getattr(described, "topic_id", None)
    assert plan.topics[topic].is_compacted is False
    assert {each.leader_epoch for each in plan.ranges} == {0}
    assert plan.ranges[1].bytes_estimate > 90_000
    assert ReadPlan.from_json(plan.to_json()) == plan


def test_the_end_is_fixed_when_the_plan_is_made(cluster: Cluster) -> None:
    topic = new_topic(cluster)
    assert plan_of(cluster, topic).ranges == ()
    append(cluster, topic, 0, 1, 2)
    plan = plan_of(cluster, topic)
    append(cluster, topic, 0, 3)
    assert plan_rows(plan) == [(0, 0, 2)]


def test_a_plan_by_timestamps(cluster: Cluster) -> None:
    topic = new_topic(cluster, 2)
    append(cluster, topic, 0, 1000, 2000, 3000)
    append(cluster, topic, 1, 1500, 2500)
    plan = plan_of(cluster, topic, startingTimestamp=1500, endingTimestamp=2500)
    assert plan_rows(plan) == [(0, 1, 2), (1, 0, 1)]
    by_partition = f'{{"{topic}":{{"0":3000,"1":1}}}}'
    plan = plan_of(cluster, topic, startingOffsetsByTimestamp=by_partition, endingTimestamp=9000)
    assert plan_rows(plan) == [(0, 2, 3), (1, 0, 2)]
    with pytest.raises(PlanError, match="no record at or after the starting timestamp 2600"):
        plan_of(cluster, topic, startingTimestamp=2600)
    plan = plan_of(
        cluster, topic, startingTimestamp=2600, startingOffsetsByTimestampStrategy="latest"
    )
    assert plan_rows(plan) == [(0, 2, 3)]


def test_splits_of_a_plan(cluster: Cluster) -> None:
    topic = new_topic(cluster, 2)
    append(cluster, topic, 0, *range(10))
    append(cluster, topic, 1, *range(2))
    assert plan_rows(plan_of(cluster, topic, maxRecordsPerPartition=5)) == [
        (0, 0, 5),
        (0, 5, 10),
        (1, 0, 2),
    ]
    assert len(plan_of(cluster, topic, minPartitions=6).ranges) == 6
    sizes = [each.bytes_estimate for each in plan_of(cluster, topic).ranges]
    assert len(plan_of(cluster, topic, maxBytesPerPartition=sizes[0] // 2 + 1).ranges) == 3


def test_offsets_of_a_plan_that_are_not_there(cluster: Cluster) -> None:
    topic = new_topic(cluster)
    append(cluster, topic, 0, *range(10))
    BlockingAdmin(cluster).delete_records({TopicPartition(topic, 0): 4})
    given = {
        "startingOffsets": f'{{"{topic}":{{"0":2}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":12}}}}',
    }
    with pytest.raises(PlanError, match="offsets 10 to 11 are beyond the end of the log"):
        plan_of(cluster, topic, **given)
    assert plan_rows(plan_of(cluster, topic, **given, failOnDataLoss="false")) == [(0, 2, 10)]
    with pytest.raises(OptionError, match=f"not name {topic}-0; it names {topic}-1, not"):
        plan_of(cluster, topic, startingOffsets=f'{{"{topic}":{{"1":0}}}}')


def test_a_plan_knows_which_topics_are_compacted(cluster: Cluster) -> None:
    topic = new_topic(cluster, cleanup_policy="compact,delete")
    assert plan_of(cluster, topic).topics[topic].is_compacted is True


def test_only_what_is_committed_is_in_a_plan_that_asks_for_that(kafka: Peer) -> None:
    with connect(kafka.bootstrap, timeout_s=PATIENCE_S) as cluster:
        topic = new_topic(cluster)
        append(cluster, topic, 0, 1, 2, 3)
        settings = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        producer = Producer({**settings, "transactional.id": topic})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        assert plan_rows(plan_of(cluster, topic)) == [(0, 0, 4)]
        plan = plan_of(cluster, topic, **{"kafka.isolation.level": "read_committed"})
        assert plan.read_committed
        assert plan_rows(plan) == [(0, 0, 3)]
        producer.abort_transaction(PATIENCE_S)


def test_topics_by_pattern_and_by_assignment(cluster: Cluster) -> None:
    topic = new_topic(cluster, 2)
    for partition in (0, 1):
        append(cluster, topic, partition, 1)
    where = {"kafka.bootstrap.servers": "h"}
    found = make_plan(cluster, ReadOptions.parse({**where, "subscribePattern": topic[2:] + "$"}))
    assert plan_rows(found) == [(0, 0, 1), (1, 0, 1)]
    found = make_plan(cluster, ReadOptions.parse({**where, "assign": f'{{"{topic}":[1]}}'}))
    assert plan_rows(found) == [(1, 0, 1)]
    with pytest.raises(PlanError, match=f"not exist: {topic}-2, {topic}-3"):
        make_plan(cluster, ReadOptions.parse({**where, "assign": f'{{"{topic}":[1,2,3]}}'}))


def test_a_pattern_without_a_topic_reads_nothing_and_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"kafka.bootstrap.servers": "h", "subscribePattern": unique("nobody")}
    with caplog.at_level(logging.WARNING):
        assert make_plan(cluster, ReadOptions.parse(asked)).ranges == ()
    assert "nothing is read" in caplog.text


def test_a_topic_that_is_not_there_is_an_error(cluster: Cluster) -> None:
    name = unique("nowhere")
    with pytest.raises(PlanError, match=f"there is no topic {name}"):
        plan_of(cluster, name)


def test_what_a_user_may_not_know_is_left_out_or_said(java: None, tmp_path: Path) -> None:
    """Sizes and configs are left out of the plan; a topic that may not be described is an error."""
    kafka = KafkaNode(
        tmp_path,
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    kafka.start()
    try:
        with connect(kafka.bootstrap, timeout_s=PATIENCE_S) as cluster:
            known, unknown = new_topic(cluster), new_topic(cluster)
            append(cluster, known, 0, 1, 2, 3)
            allow_reading_alone(kafka.bootstrap, known, unknown)
            plan = plan_of(cluster, known)
            assert plan_rows(plan) == [(0, 0, 3)]
            assert plan.ranges[0].bytes_estimate == UNKNOWN
            assert plan.topics[known].is_compacted is None
            with pytest.raises(PlanError, match=f"does not report the size of {known}-0"):
                plan_of(cluster, known, maxBytesPerPartition=10)
            with pytest.raises(PlanError, match=f"may not read topic {unknown}: grant Read"):
                plan_of(cluster, f"{known},{unknown}")
    finally:
        kafka.stop()


def allow_reading_alone(bootstrap: str, known: str, unknown: str) -> None:
    """Deny access to one of the topics; a broker keeps the rights that it needs."""
    topic, cluster = ResourceType.TOPIC, ResourceType.BROKER
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, how)
        for kind, name, operation, how in (
            (topic, known, AclOperation.READ, allow),
            (topic, known, AclOperation.DESCRIBE_CONFIGS, deny),
            (topic, unknown, AclOperation.DESCRIBE, deny),
            (cluster, "kafka-cluster", AclOperation.CLUSTER_ACTION, allow),
            (cluster, "kafka-cluster", AclOperation.ALTER, allow),
            (cluster, "kafka-cluster", AclOperation.DESCRIBE, deny),
        )
    ]
    for done in client.create_acls(bindings).values():
        done.result(PATIENCE_S)
