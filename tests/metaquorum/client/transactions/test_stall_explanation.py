"""The sentences of `mq-admin transactions explain`, for facts of every kind."""

from collections.abc import Sequence

import pytest

from metaquorum.client.administration.health import MissingReplica, PartitionHealth
from metaquorum.client.administration.topic_survival import Level
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.transactions.hanging import why_hanging
from metaquorum.client.transactions.stall_explanation import explain
from metaquorum.client.transactions.stall_facts import StallFacts, StallingTransaction
from metaquorum.client.transactions.values import (
    OpenTransaction,
    ProducerState,
    TransactionDescription,
)
from metaquorum.client.values import Eligible

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_800_000_000_000
AWAY = MissingReplica(2, "its worker is fenced", None, None)


def healthy(
    where: TopicPartition = PLACE,
    leader: int | None = 1,
    isr: Sequence[int] = (1, 2),
    missing: Sequence[MissingReplica] = (),
) -> PartitionHealth:
    return PartitionHealth(
        where.topic, where.partition, leader, (1, 2), isr, 2, missing, Eligible()
    )


def described(
    state: str, partitions: Sequence[TopicPartition] = (PLACE,), age_s: float = 10
) -> TransactionDescription:
    start_ms = NOW_MS - int(age_s * 1000)
    return TransactionDescription("it's", state, 7, 3, 60_000, start_ms, partitions, 5)


def opened(
    description: TransactionDescription | None,
    is_complete: bool = True,
    unmarked: Sequence[PartitionHealth] = (),
    start_offset: int = 4,
) -> StallingTransaction:
    producer = ProducerState(7, 3, 0, NOW_MS - 2000, 0, start_offset)
    transaction = OpenTransaction(PLACE, producer)
    why = why_hanging(transaction, description, is_complete)
    return StallingTransaction(transaction, description, why, unmarked)


def stalled(
    *transactions: StallingTransaction,
    health: PartitionHealth | None = None,
    offsets: tuple[int | None, int | None] = (4, 9),
    is_moving: bool = False,
) -> StallFacts:
    health = health or healthy()
    return StallFacts(PLACE, health, *offsets, is_moving, transactions, NOW_MS)


def said(facts: StallFacts) -> dict[str, tuple[Level, str]]:
    sentences = explain(facts)
    found = {each.about: (each.level, each.text) for each in sentences}
    assert len(found) == len(sentences)
    return found


def test_nothing_waits() -> None:
    assert said(stalled(offsets=(9, 9))) == {
        "last stable offset": (Level.GOOD, "read_committed reads everything, up to offset 9")
    }


def test_a_partition_without_a_leader() -> None:
    facts = stalled(health=healthy(leader=None, isr=(1,), missing=[AWAY]), offsets=(None, None))
    assert said(facts) == {
        "partition": (
            Level.BAD,
            "the partition has no leader: no consumer can read it (node 2: its worker is fenced)",
        )
    }


def test_a_leader_without_a_high_watermark() -> None:
    facts = stalled(
        opened(described("Ongoing")),
        health=healthy(isr=(1,), missing=[AWAY]),
        offsets=(None, None),
    )
    found = said(facts)
    assert found["offsets"] == (
        Level.BAD,
        "not known: the leader does not know its high watermark, or did not answer; only 1 replica "
        "of min.insync.replicas=2 is in sync (node 2: its worker is fenced)",
    )
    assert "it's" in found["transaction"][1]


def test_an_ongoing_transaction_ends_by_its_timeout() -> None:
    found = said(stalled(opened(described("Ongoing"))))
    assert found["last stable offset"] == (
        Level.NOTE,
        "read_committed stops at offset 4; 5 offsets up to the high watermark, 9, can be "
        "read with read_uncommitted only",
    )
    assert found["transaction"] == (
        Level.NOTE,
        "the transaction of transactional id it's (producer id 7, epoch 3) begins here at offset 4;"
        " it began at 2027-01-15 07:59:50 UTC, 10 s ago, and is Ongoing; the last record has the "
        "time 2027-01-15 07:59:58 UTC, 2.0 s ago",
    )
    assert found["end"] == (
        Level.NOTE,
        "its producer commits or aborts it; otherwise its coordinator, node 5, aborts it at "
        "2027-01-15 08:00:50 UTC, in 50 s (transaction timeout 60 s); `mq-admin transactions abort "
        "--transactional-id 'it'\"'\"'s'` aborts it now and fences its producer",
    )


@pytest.mark.parametrize(
    ("age_s", "level", "text"),
    [
        (65, Level.NOTE, "its timeout of 60 s passed 5.0 s ago: its coordinator, node 5, aborts"),
        (300, Level.BAD, "aborts it at its next check, which is overdue"),
    ],
)
def test_a_transaction_whose_timeout_has_passed(age_s: float, level: Level, text: str) -> None:
    found = said(stalled(opened(described("Ongoing", age_s=age_s))))
    assert found["end"][0] is found["last stable offset"][0] is level
    assert text in found["end"][1]


def test_a_prepared_transaction_waits_for_its_marker() -> None:
    found = said(stalled(opened(described("PrepareCommit"))))
    assert found["end"] == (
        Level.NOTE,
        "its commit is decided; the marker of its coordinator, node 5, is missing here: the leader,"
        " node 1, gets it when the coordinator reaches it",
    )
    health = healthy(isr=(1,), missing=[AWAY])
    found = said(stalled(opened(described("PrepareAbort")), health=health))
    assert found["end"] == (
        Level.BAD,
        "its abort is decided; the marker of its coordinator, node 5, is missing here, as only 1 "
        "replica of min.insync.replicas=2 is in sync (node 2: its worker is fenced)",
    )


def test_markers_are_missing_in_other_partitions() -> None:
    other = healthy(OTHER, leader=None, isr=(2,), missing=[AWAY])
    description = described("PrepareCommit", (PLACE, OTHER))
    found = said(stalled(opened(description, unmarked=[healthy(), other])))
    assert found["other partitions"] == (
        Level.BAD,
        "markers are also missing in t:1, and the transactional id begins no other transaction "
        "before they are written: t:1: it has no leader (node 2: its worker is fenced)",
    )


def test_a_hanging_transaction_is_ended_by_an_administrator() -> None:
    command = "`mq-admin transactions abort t:0 --start-offset 4` aborts it in this partition"
    found = said(stalled(opened(None)))
    assert found["last stable offset"][0] is Level.BAD
    assert found["end"] == (
        Level.BAD,
        f"nothing will end it, it hangs: no coordinator knows its producer id; {command}",
    )
    for description in (described("Ongoing", (OTHER,)), described("CompleteCommit", ())):
        found = said(stalled(opened(description)))
        assert found["end"] == (
            Level.BAD,
            "nothing will end it, it hangs: its coordinator knows no transaction of it's in this "
            f"partition (state {description.state}, epoch 3); {command}",
        )
        assert "began" not in found["transaction"][1]  # the times of another transaction


def test_a_transaction_of_a_coordinator_that_did_not_answer() -> None:
    found = said(stalled(opened(None, is_complete=False)))
    assert found["end"] == (
        Level.BAD,
        "not known: not all coordinators answered, and those that did do not have it",
    )


def test_only_the_marker_is_not_replicated_yet() -> None:
    assert said(stalled())["replication"] == (
        Level.NOTE,
        "no transaction is open in the leader's log: the marker that ended the last one is not "
        "replicated yet; it waits for the replicas 1, 2",
    )
    level, text = said(stalled(health=healthy(isr=(1,), missing=[AWAY])))["replication"]
    assert level is Level.BAD
    assert text.endswith("only 1 replica of min.insync.replicas=2 is in sync (node 2: its worker is"
                         " fenced)")  # fmt: skip


def test_transactions_behind_the_first_are_counted() -> None:
    first = opened(described("Ongoing"))
    found = said(stalled(first, opened(described("Ongoing"), start_offset=6)))
    assert found["next"] == (
        Level.NOTE, "behind it 1 more transaction of this partition is open"
    )  # fmt: skip
    found = said(stalled(first, opened(None, start_offset=6), opened(None, start_offset=7)))
    assert found["next"] == (
        Level.BAD,
        "behind it 2 more transactions of this partition are open, 2 of them hanging",
    )


def test_an_offset_that_moves_is_not_a_standstill() -> None:
    text = said(stalled(opened(described("Ongoing")), is_moving=True))["last stable offset"][1]
    assert text.startswith("read_committed has come to offset 4")
    assert text.endswith("It moved meanwhile: run this again")
    assert list(said(stalled(is_moving=True))) == ["last stable offset"]
