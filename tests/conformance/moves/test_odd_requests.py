"""Requests about moves that a client makes by mistake get the answers of Apache Kafka 4.3.1.

METAQUORUM_TEST_PEER=kafka asks Apache Kafka, as do the other tests of clients. Where it answers in
the order of a hash table, these tests sort the answers.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from metaquorum.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from metaquorum.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from metaquorum.wire.primitives.errors import ErrorCode
from tests.conformance.groups.peers import ThreeNodes
from tests.conformance.groups.raw import Connection
from tests.conformance.moves.topics import new_topic
from tests.nodes import wait_until

pytestmark = pytest.mark.slow

OK = int(ErrorCode.NONE)
UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
NOT_MOVING = int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
BAD = int(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
OTHER_FACTOR = int(ErrorCode.INVALID_REPLICATION_FACTOR)
LATE = int(ErrorCode.REQUEST_TIMED_OUT)

Row = tuple[int, list[int] | None]
EMPTY = "The manual partition assignment includes an empty replica list."


def absent(worker: int) -> str:
    return (
        f"The manual partition assignment includes broker {worker}, but no such broker is"
        " registered."
    )


def twice(worker: int) -> str:
    return f"The manual partition assignment includes the broker {worker} more than once."


@pytest.fixture(scope="module")
def topic(three: ThreeNodes) -> str:
    """Return a topic of two partitions with the replicas 1 and 2."""
    return new_topic(",".join(three.addresses), 2, [1, 2])


@pytest.fixture(params=[1, 2, 3])
def connection(request: pytest.FixtureRequest, three: ThreeNodes) -> Iterator[Connection]:
    """Return a connection to each node: all answer in the same way, active controller or not."""
    with Connection(three.addresses[request.param - 1]) as connection:
        yield connection


def altered(
    connection: Connection,
    *topics: tuple[str, Sequence[Row]],
    version: int = 1,
    timeout_ms: int = 60_000,
    keeps_factor: bool = False,
) -> Any:
    asked = AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        allow_replication_factor_change=not keeps_factor,
        topics=[
            ReassignableTopic(
                name=name,
                partitions=[ReassignablePartition(partition_index=n, replicas=r) for n, r in rows],
            )
            for name, rows in topics
        ],
    )
    return connection.call(asked, version)


def rows_of(answer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in answer.responses
    ]


def test_alter_partition_reassignments(connection: Connection, topic: str) -> None:
    for version in (0, 1):
        nothing = altered(connection, version=version)
        assert (nothing.error_code, nothing.error_message, nothing.responses) == (OK, "", [])
    for name in (topic, "nope", ""):
        assert rows_of(altered(connection, (name, []))) == [(name, [])]
    refused: list[tuple[str, int, list[int] | None, bool, int, str | None]] = [
        ("nope", 0, [1], False, UNKNOWN, "Unable to find a topic named nope."),
        ("nope", 0, None, False, UNKNOWN, "Unable to find a topic named nope."),
        ("nope", 0, [9], True, UNKNOWN, "Unable to find a topic named nope."),
        ("", 0, [1], False, UNKNOWN, "Unable to find a topic named ."),
        ("a/b", 0, [1], False, UNKNOWN, "Unable to find a topic named a/b."),
        (topic, -1, [1], False, UNKNOWN, f"Unable to find partition {topic}:-1."),
        (topic, 9, None, False, UNKNOWN, f"Unable to find partition {topic}:9."),
        (topic, 2**31 - 1, [], False, UNKNOWN, f"Unable to find partition {topic}:2147483647."),
        (topic, 0, [], False, BAD, EMPTY),
        (topic, 0, [], True, BAD, EMPTY),
        (topic, 0, [1, 1], False, BAD, twice(1)),
        (topic, 0, [1, 1, 2], True, BAD, twice(1)),
        (topic, 0, [1, 2] * 50, False, BAD, twice(1)),
        (topic, 0, [-1], False, BAD, absent(-1)),
        (topic, 0, [9, 8, -3], False, BAD, absent(-3)),
        (topic, 0, [9], True, BAD, absent(9)),
        (topic, 0, [3], True, OTHER_FACTOR, "The replication factor is changed from 2 to 1"),
        (topic, 0, [1, 2, 3], True, OTHER_FACTOR, "The replication factor is changed from 2 to 3"),
        (topic, 0, [1, 2], True, OK, None),
    ]
    for name, index, replicas, keeps_factor, code, message in refused:
        answer = altered(connection, (name, [(index, replicas)]), keeps_factor=keeps_factor)
        assert (answer.error_code, answer.error_message) == (OK, None)
        assert answer.allow_replication_factor_change is not keeps_factor
        (row,) = answer.responses[0].partitions
        assert (row.partition_index, row.error_code, row.error_message) == (index, code, message)


def test_parts_of_a_request_are_answered_in_their_order(connection: Connection, topic: str) -> None:
    cancel: Row = (0, None)
    same: Row = (0, [1, 2])
    answer = altered(connection, (topic, [same, same, cancel, (9, [1])]), ("nope", [cancel]))
    assert rows_of(answer) == [
        (topic, [(0, OK), (0, OK), (0, NOT_MOVING), (9, UNKNOWN)]),
        ("nope", [(0, UNKNOWN)]),
    ]
    answer = altered(connection, (topic, [same]), ("nope", [same]), (topic, [cancel]))
    assert rows_of(answer) == [
        (topic, [(0, OK)]),
        ("nope", [(0, UNKNOWN)]),
        (topic, [(0, NOT_MOVING)]),
    ]
    for timeout_ms in (0, -1):
        answer = altered(connection, (topic, [same, (9, [1])]), timeout_ms=timeout_ms)
        assert answer.error_code == LATE
        assert rows_of(answer) == [(topic, [(0, LATE), (9, LATE)])]


def test_list_partition_reassignments(connection: Connection, topic: str) -> None:
    for asked in (None, [], [("nope", [0])], [(topic, [])], [(topic, [-1, 9, 0, 0]), ("", [0])]):
        for timeout_ms in (60_000, 0, -1):
            topics = None if asked is None else [listable(*each) for each in asked]
            request = ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)
            answer = connection.call(request)
            assert (answer.error_code, answer.error_message, answer.topics) == (OK, None, [])


def listable(name: str, indexes: list[int]) -> ListPartitionReassignmentsTopics:
    return ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)


Asked = Iterable[tuple[str, Sequence[tuple[str, list[int]]]]]


def moved(connection: Connection, asked: Asked, version: int = 2) -> dict[tuple[str, int], int]:
    """Return the error code of each partition that is asked to move to a directory."""
    dirs = [
        AlterReplicaLogDir(
            path=path,
            topics=[AlterReplicaLogDirTopic(name=name, partitions=rows) for name, rows in topics],
        )
        for path, topics in asked
    ]
    answer = connection.call(AlterReplicaLogDirsRequest(dirs=dirs), version)
    found = [
        ((topic.topic_name, one.partition_index), one.error_code)
        for topic in answer.results
        for one in topic.partitions
    ]
    assert len(dict(found)) == len(found), "a partition is answered once"
    return dict(found)


def described(
    connection: Connection, topics: Sequence[tuple[str, list[int]]] | None, version: int = 5
) -> dict[str, list[tuple[str, int, bool]]]:
    """Return topic, index, and whether it is a future replica, of each replica in a directory."""
    asked = None
    if topics is not None:
        asked = [DescribableLogDirTopic(topic=name, partitions=rows) for name, rows in topics]
    answer = connection.call(DescribeLogDirsRequest(topics=asked), version)
    assert answer.error_code == OK
    for each in answer.results:
        assert each.error_code == OK
        assert (each.total_bytes > 0) is (each.usable_bytes > 0) is (version >= 4)
    return {
        each.log_dir: sorted(
            (topic.name, one.partition_index, one.is_future_key)
            for topic in each.topics
            for one in topic.partitions
        )
        for each in answer.results
    }


def test_describe_log_dirs(three: ThreeNodes, topic: str) -> None:
    with Connection(three.addresses[0]) as first:
        every = described(first, None)
        for version in range(1, 6):
            for asked in ([], [("nope", [0])], [(topic, [-1, 9])], [(topic, [])]):
                assert not any(described(first, asked, version).values())
            both = described(first, [(topic, [0, 0]), (topic, [0, 1])], version)
            assert sorted(row for rows in both.values() for row in rows) == [
                (topic, 0, False),
                (topic, 1, False),
            ]
            assert both.keys() == every.keys()
            assert all(row in every[path] for path, rows in both.items() for row in rows)


def test_alter_replica_log_dirs(three: ThreeNodes, topic: str) -> None:
    no_dir, not_here = int(ErrorCode.LOG_DIR_NOT_FOUND), int(ErrorCode.REPLICA_NOT_AVAILABLE)
    bad_topic = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
    with Connection(three.addresses[0]) as first, Connection(three.addresses[2]) as third:
        every = described(first, [(topic, [0])])
        (here,) = [path for path, rows in every.items() if rows]
        (other,) = every.keys() - {here}
        for version in (1, 2):
            for asked in ([], [(here, [])], [("/nope", [])], [(here, [(topic, [])])]):
                assert moved(first, asked, version) == {}
            for path in ("/nope", "a", "", f"{here}/."):
                assert moved(first, [(path, [(topic, [0])])], version) == {(topic, 0): no_dir}
            asked = [("/nope", [("nope", [0]), (topic, [-1])])]
            assert set(moved(first, asked, version).values()) == {no_dir}
            names = [(name, [0]) for name in ("nope", "a/b", "", "..")]
            assert set(moved(first, [(here, names)], version).values()) == {UNKNOWN}
            assert set(moved(first, [(here, [("x" * 250, [0])])], version).values()) == {bad_topic}
            odd = [-1, 9, 2**31 - 1]
            assert set(moved(first, [(here, [(topic, odd)])], version).values()) == {UNKNOWN}
            assert moved(first, [(here, [(topic, [0])])], version) == {(topic, 0): OK}
        of_third = next(iter(described(third, [])))
        wait_until(lambda: moved(third, [(of_third, [(topic, [0])])]) == {(topic, 0): not_here})
        asked = [(other, [(topic, [0, 0, 7]), ("nope", [0])])]
        assert moved(first, asked) == {
            (topic, 0): OK,
            (topic, 7): UNKNOWN,
            ("nope", 0): UNKNOWN,
        }
        wait_until(lambda: described(first, [(topic, [0])])[other] == [(topic, 0, False)])
        asked = [(here, [(topic, [0])]), (other, [(topic, [0])])]
        assert moved(first, asked) == {(topic, 0): OK}, "the last of them counts"
        wait_until(lambda: described(first, [(topic, [0])])[here] == [])
