"""Problems of partitions, and the causes given for replicas that are not in sync."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from metaquorum.client.administration.health import (
    Trouble,
    internal_topic_warnings,
    partition_health,
    troubles,
)
from metaquorum.client.values import (
    Eligible,
    FollowerView,
    Partition,
    PartitionView,
    Topic,
    WorkerDescription,
)

OFFLINE, UNDER_MIN, AT_MIN, UNDER = Trouble


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "min_isr", "found"),
    [
        (1, (1, 2, 3), (1, 2, 3), 2, []),
        (1, (1, 2, 3), (1, 2, 3), 3, []),  # at its configured min.insync.replicas
        (1, (1, 2, 3), (1, 2), 1, [UNDER]),
        (1, (1, 2, 3), (1, 2), 2, [AT_MIN, UNDER]),
        (1, (1, 2, 3), (1,), 2, [UNDER_MIN, UNDER]),
        (None, (1, 2, 3), (1,), 2, [OFFLINE, UNDER_MIN, UNDER]),
        (None, (1,), (1,), 1, [OFFLINE]),
        (1, (1,), (1,), 2, []),  # min.insync.replicas above the number of replicas
        (1, (1, 2), (1,), 3, [UNDER_MIN, UNDER]),
        (1, (1, 2), (1,), None, [UNDER]),
    ],
)
def test_troubles(
    leader: int | None,
    replicas: Sequence[int],
    isr: Sequence[int],
    min_isr: int | None,
    found: list[Trouble],
) -> None:
    assert troubles(leader, replicas, isr, min_isr) == found


@pytest.mark.parametrize(
    ("replicas", "isr", "adding", "removing", "found"),
    [
        ((1, 2, 3), (1, 2), (3,), (), []),
        ((3, 2, 1), (2, 1), (3,), (1,), []),
        ((3, 2, 1), (2,), (3,), (1,), [UNDER_MIN, UNDER]),
        ((3, 2, 1), (3, 2), (3,), (1,), []),  # as Kafka, which counts in-sync replicas
        ((1, 2), (1,), (), (2,), [AT_MIN, UNDER]),  # the target is one replica
        ((1, 2), (1,), (2,), (), [UNDER_MIN]),  # acks=all is refused until replica 2 is in sync
    ],
)
def test_troubles_of_a_partition_that_moves(
    replicas: Sequence[int],
    isr: Sequence[int],
    adding: Sequence[int],
    removing: Sequence[int],
    found: list[Trouble],
) -> None:
    assert troubles(replicas[-1], replicas, isr, 2, adding=adding, removing=removing) == found


def worker(number: int, **more: Any) -> WorkerDescription:
    fields: dict[str, Any] = {
        "worker_id": number,
        "address": "h:1",
        "rack": None,
        "is_fenced": False,
        "why_fenced": None,
        "host": None,
        "broker_epoch": 1,
        "is_shutting_down": False,
        "metadata_offset": 1,
        "heard_ms_ago": 7,
    }
    return WorkerDescription(**(fields | more))


def view(**more: Any) -> PartitionView:
    fields: dict[str, Any] = {
        "node": 2,
        "in_sync": False,
        "log_end_offset": 90,
        "fetched_ms_ago": 10,
        "caught_up_ms_ago": 4000,
    }
    return PartitionView(1, 80, 100, [FollowerView(**(fields | more))])


SILENT = worker(2, is_fenced=True, why_fenced="silent")
NEW = view(log_end_offset=None, caught_up_ms_ago=None)


@pytest.mark.parametrize(
    ("there", "offline", "seen", "why", "lag", "since"),
    [
        (None, [], None, "its worker is not registered", None, None),
        (worker(2, is_fenced=True), [], None, "its worker is fenced", None, 7),
        (SILENT, [2], view(), "its worker is fenced: silent", 10, 4000),
        (worker(2, is_shutting_down=True), [], None, "its worker is shutting down", None, None),
        (worker(2), [2], view(), "its log directory is offline", 10, 4000),
        (worker(2), [], view(), "it lags behind", 10, 4000),
        (worker(2), [], view(log_end_offset=100), "it is about to join the ISR", 0, 4000),
        (worker(2), [], NEW, "it has not fetched yet", None, None),
        (worker(2), [], view(fetched_ms_ago=60_000), "it has stopped fetching", 10, 4000),
        (worker(2), [], None, "not in sync", None, None),
    ],
)  # fmt: skip
def test_why_a_replica_is_missing(
    there: WorkerDescription | None,
    offline: list[int],
    seen: PartitionView | None,
    why: str,
    lag: int | None,
    since: int | None,
) -> None:
    partition = Partition(0, 1, 3, [1, 2], [1], offline)
    topic = Topic("t", "id", False, [partition])
    workers = {1: worker(1)} | ({2: there} if there is not None else {})
    found = partition_health(topic, partition, 1, workers, seen)
    (missing,) = found.missing
    assert (missing.node, missing.why, missing.lag, missing.since_ms_ago) == (2, why, lag, since)


def test_who_may_lead_without_being_in_sync_is_told_where_it_is_known() -> None:
    topic = Topic("t", "id", False, [])
    partition = Partition(0, None, 3, [1, 2], [], [])
    assert partition_health(topic, partition, 2, {}, None).eligible == Eligible()
    known = Eligible((2,), 1)
    assert partition_health(topic, partition, 2, {}, None, known).eligible == known


def offsets_topic(*replicas: Sequence[int]) -> Topic:
    partitions = [Partition(index, 1, 0, on, on, []) for index, on in enumerate(replicas)]
    return Topic("__consumer_offsets", "id", True, partitions)


@pytest.mark.parametrize(
    ("replicas", "live_workers", "most_replicas", "short"),
    [
        (((1, 2, 3), (2, 3, 1)), 3, 3, 0),
        (((1, 2, 3), (2, 3)), 3, 3, 1),
        (((1,), (2,)), 3, 3, 2),
        (((1,), (2,)), 1, 3, 0),  # no other worker is live
        (((1,), (2,)), 2, 3, 2),
        (((1,), (2,)), 3, 1, 0),  # wanted so
        (((1,), (2,)), 3, None, 0),
        (((1, 2, 3),), 5, 3, 0),
    ],
)
def test_an_offsets_topic_with_fewer_replicas_than_possible_is_a_risk(
    replicas: Sequence[Sequence[int]], live_workers: int, most_replicas: int | None, short: int
) -> None:
    topic = offsets_topic(*replicas)
    found = internal_topic_warnings(topic, live_workers, most_replicas, "compact")
    assert len(found) == bool(short)
    if short:
        wanted = min(live_workers, most_replicas or 0)
        assert found[0].startswith(
            f"{short} partitions of __consumer_offsets have fewer replicas than {wanted}"
        )


@pytest.mark.parametrize(
    ("policy", "is_risk"),
    [("compact", False), ("compact,delete", False), ("delete", True), (None, False)],
)
def test_an_offsets_topic_without_compaction_is_a_risk(
    policy: str | None, *, is_risk: bool
) -> None:
    found = internal_topic_warnings(offsets_topic((1,)), 1, 3, policy)
    assert len(found) == is_risk
    if is_risk:
        assert "configs set topic __consumer_offsets cleanup.policy=compact" in found[0]


def test_the_topic_of_transactions_is_checked_like_that_of_offsets() -> None:
    topic = replace(offsets_topic((1,), (1, 2)), name="__transaction_state")
    found = internal_topic_warnings(topic, 2, 3, "delete")
    assert found == [
        "1 partitions of __transaction_state have fewer replicas than 2, the number that 2 live "
        "workers and transaction.state.log.replication.factor=3 permit: states of transactions are "
        "lost if the workers that have them lose their disks",
        "__transaction_state has cleanup.policy=delete: retention deletes states of transactions "
        "that are in use; set it with `mq-admin configs set topic __transaction_state "
        "cleanup.policy=compact`",
    ]
