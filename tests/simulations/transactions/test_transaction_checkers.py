"""Each checker of transactions finds the histories that it is for, and passes the others."""

from collections.abc import Iterable
from random import Random
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.metadata.internal_topics import TRANSACTION_STATE
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.replication.partition_transactions import (
    Aborted,
    Kind,
    Stamp,
    stable_view,
    stamps_of,
    transactions_of,
)
from metaquorum.simulations.replication.probes import records_of
from metaquorum.simulations.replication.replicas import (
    Content,
    Entry,
    Identity,
    Name,
    PartitionHistory,
    Place,
    ReadableEnds,
    ReplicaLog,
    Role,
)
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.transactions.coordinator_records import Status, decode_state
from metaquorum.simulations.transactions.decision_checkers import (
    AppendedIsInTransaction,
    DecisionsComeFirst,
    EpochsInLogsGrow,
    StableOffsetIsThatOfTheLog,
    StatesFollow,
)
from metaquorum.simulations.transactions.transaction_checkers import (
    AbortedIsLeftOut,
    AllOrNothing,
    CommittedIsShown,
    EpochsAreGivenOnce,
    ExactlyOnce,
    PositionsAreCommitted,
    SumIsTheSame,
    TransactionsEnd,
    ZombiesAreRefused,
)
from metaquorum.simulations.transactions.transaction_history import (
    Outcome,
    Producer,
    Transaction,
)
from metaquorum.simulations.transactions.transactions_scenario import ALL_CHECKERS, draw_settings
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import Record, encode_batch

ONE, OTHER = Place(b"1" * 16, 0), Place(b"2" * 16, 0)
STATE = Place(b"9" * 16, 0)
LEADER = Role(0, leads=True)
PRODUCER = Producer(7, 3)


def data(producer: Producer = PRODUCER) -> Stamp:
    return Stamp(*producer, Kind.DATA)


def marker(kind: Kind, producer: Producer = PRODUCER, coordinator_epoch: int = 0) -> Stamp:
    return Stamp(*producer, kind, coordinator_epoch)


class Cluster:
    """Checkers of a world without machines, and logs that the tests write."""

    def __init__(self) -> None:
        self.world = World(0)
        self.state = ReplicatedClusterState(self.world, draw_settings(Random(0)), ALL_CHECKERS)
        self.replicas: dict[Place, ReplicaLog] = {}
        topics = {b"1": "one", b"2": "other", b"9": TRANSACTION_STATE}
        for place in (ONE, OTHER, STATE):
            machine: Any = SimpleNamespace(power_cuts=[], runs=1)
            self.log(place).topic = topics[place.topic_id[:1]]
            self.replicas[place] = ReplicaLog(1, machine)

    def checker(self, kind: Any) -> Any:
        return self.state.checker(kind)

    def log(self, place: Place) -> PartitionHistory:
        return self.state.cluster_history.history(*place)

    @property
    def found(self) -> list[str]:
        return [violation.invariant.split()[1] for violation in self.world.violations]

    @property
    def is_clean(self) -> bool:
        return not self.found

    def append(self, place: Place, *stamps: Stamp | None, commits: bool = True) -> None:
        """Append records with these stamps to a leader's log; the markers' own are committed."""
        history, replica = self.log(place), self.replicas[place]
        for stamp in stamps:
            name = Name(0, replica.end)
            if stamp is not None:
                history.stamped(name, stamp)
            self._append(history, replica, Entry(name, Identity(replica.end, 0)), commits)

    def _append(
        self, history: PartitionHistory, replica: ReplicaLog, entry: Entry, commits: bool
    ) -> None:
        for kind in (StatesFollow, DecisionsComeFirst, EpochsInLogsGrow, AppendedIsInTransaction):
            self.checker(kind).appended(history, replica, [entry], LEADER)
        replica.epochs[entry.name.offset] = 0
        replica.end += 1
        if entry.name in history.stamps:
            replica.transactions.add(entry.name.offset, history.stamps[entry.name])
        if commits:
            history.ever_committed.add(entry.name)

    def decide(
        self,
        status: Status,
        producer: Producer = PRODUCER,
        places: Iterable[Place] = (ONE,),
        *,
        commits: bool = True,
        started_ms: int = 0,
    ) -> None:
        """Append a state of a transactional id to `__transaction_state`."""
        history, replica = self.log(STATE), self.replicas[STATE]
        contents = self.state.cluster_history.contents
        assert contents is not None
        value = state_value(status, producer, places, started_ms)
        content = Content(pack(">hh2s", 0, 2, b"id"), value, False)
        identity = Identity(replica.end, 1)
        contents[identity] = content
        self._append(history, replica, Entry(Name(0, replica.end), identity), commits)

    def transaction(
        self, *places: Place, outcome: Outcome | None = None, asked: bool = True
    ) -> Transaction:
        history = self.checker(CommittedIsShown).history
        begun = history.begin("id", "client", PRODUCER, 1, 1.0, 0.0)
        for place in places:
            values = [b"%d in %d" % (place.topic_id[0], begun.number)]
            history.sends(begun, place, values)
            begun.sent[place][values[0]] = 0
        begun.commit_asked_at = 1.0 if asked else None
        begun.outcome = outcome
        begun.ended_at = None if outcome is None else 2.0
        return begun


def state_value(
    status: Status, producer: Producer, places: Iterable[Place], started_ms: int = 0
) -> bytes:
    names = ["one" if place == ONE else "other" for place in places]
    topics = b"".join(pack(f">h{len(n)}sii", len(n), n.encode(), 1, 0) for n in names)
    head = pack(">hqhib", 0, *producer, 1000, status)
    return head + pack(">i", len(names)) + topics + pack(">qq", 0, started_ms)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# Transactions in logs


def a_log() -> bytes:
    def batch(offset: int, producer: Producer, **more: Any) -> bytes:
        record = more.pop("record", Record(offset, 0, b"key", b"value", ()))
        ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        return bytes(encode_batch([record], transactional=True, leader_epoch=0, **ids, **more))

    abort = Record(2, 0, pack(">hh", 0, 0), pack(">hi", 0, 5), ())
    commit = Record(3, 0, pack(">hh", 0, 1), pack(">hi", 0, 6), ())
    return b"".join(
        [
            batch(0, Producer(7, 3), base_sequence=0),
            batch(1, Producer(8, 0), base_sequence=0),
            batch(2, Producer(7, 3), control=True, record=abort),
            batch(3, Producer(8, 0), control=True, record=commit),
            batch(4, Producer(7, 3), base_sequence=1),
        ]
    )


def test_transactions_are_read_off_a_log() -> None:
    stamps = [(offset, stamp) for _, offset, stamp in stamps_of(a_log())]
    assert stamps[2:4] == [
        (2, Stamp(7, 3, Kind.ABORT, 5)),
        (3, Stamp(8, 0, Kind.COMMIT, 6)),
    ]
    found = transactions_of(stamps)
    assert found.open == {7: 4}
    assert found.ended == [(0, 2), (1, 3)]
    stable = [found.last_stable_offset(high_watermark, 0) for high_watermark in range(6)]
    assert stable == [0, 0, 0, 1, 4, 4]


def test_markers_of_all_partitions_have_the_same_contents_and_no_number() -> None:
    contents = dict(records_of(a_log()))
    assert contents[Name(0, 2)].is_control
    assert contents[Name(0, 2)].identity.number == -1


def test_a_consumer_leaves_out_aborted_ranges_to_their_markers() -> None:
    view = stable_view(a_log(), [Aborted(7, 0)], 0)
    assert (view.shown, view.left_out) == ([1, 4], [0])
    assert stable_view(a_log(), [], 1).shown == [1, 4]


def test_states_are_decoded_in_both_versions() -> None:
    value = decode_state(state_value(Status.PREPARE_ABORT, PRODUCER, [ONE]))
    assert value.status is Status.PREPARE_ABORT
    assert value.partitions == {("one", 0)}
    assert decode_state(state_value(Status.ONGOING, PRODUCER, [ONE], 99)).started_ms == 99
    head = pack(">hqhib", 1, *PRODUCER, 1000, Status.ONGOING)
    flexible = head + b"\x02\x04one\x02\0\0\0\0\0" + pack(">qq", 0, 99) + b"\0"
    assert decode_state(flexible).partitions == {("one", 0)}
    assert decode_state(flexible).started_ms == 99
    assert decode_state(flexible).producer_epoch == PRODUCER.epoch


# T2


def shown(cluster: Cluster, offset: int, transaction: Transaction | None = None) -> None:
    value = b"-" if transaction is None else sorted(transaction.values)[0]
    entry = Entry(Name(0, offset), Identity(0, 0))
    cluster.checker(CommittedIsShown).shown(cluster.log(ONE), [(entry, value)], "reader")


def test_a_committed_record_is_shown(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_COMMIT)
    cluster.append(ONE, marker(Kind.COMMIT))
    shown(cluster, 0, cluster.transaction(ONE))
    cluster.checker(CommittedIsShown).finals()
    assert not cluster.found


def test_an_open_record_is_not_shown(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    shown(cluster, 0)
    assert cluster.found == ["CommittedIsShown"]


def test_an_aborted_record_is_not_shown(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_ABORT)
    cluster.append(ONE, marker(Kind.ABORT))
    shown(cluster, 0)
    assert cluster.found == ["CommittedIsShown"]


@pytest.mark.parametrize(("outcome", "asked"), [(Outcome.ABORTED, True), (None, False)])
def test_a_record_is_not_shown_whose_commit_was_not_asked_for(
    cluster: Cluster, outcome: Outcome | None, asked: bool
) -> None:
    cluster.append(ONE, None)
    shown(cluster, 0, cluster.transaction(ONE, outcome=outcome, asked=asked))
    assert cluster.found == ["CommittedIsShown"]


def test_what_a_reader_has_seen_is_not_aborted_later(cluster: Cluster) -> None:
    cluster.append(ONE, None)
    transaction = cluster.transaction(ONE)
    shown(cluster, 0, transaction)
    transaction.outcome = Outcome.ABORTED
    cluster.checker(CommittedIsShown).finals()
    assert cluster.found == ["CommittedIsShown"]


def test_only_aborted_records_are_left_out(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_ABORT)
    cluster.append(ONE, marker(Kind.ABORT), None)
    checker = cluster.checker(AbortedIsLeftOut)
    checker.left_out(cluster.log(ONE), [Name(0, 0)], "reader")
    assert not cluster.found
    checker.left_out(cluster.log(ONE), [Name(0, 2)], "reader")
    assert cluster.found == ["AbortedIsLeftOut"]


@pytest.mark.parametrize(
    ("stable", "high_watermark", "last", "is_right"),
    [(5, 5, 4, True), (3, 5, 2, True), (6, 5, 4, False), (3, 5, 3, False)],
)
def test_a_response_ends_at_its_last_stable_offset(
    cluster: Cluster, stable: int, high_watermark: int, last: int, is_right: bool
) -> None:
    bounds = cluster.checker(AbortedIsLeftOut).bounds
    bounds(cluster.log(ONE), stable, high_watermark, last, "reader")
    assert cluster.is_clean == is_right


# T3


@pytest.mark.parametrize(
    ("outcome", "asked", "visible", "is_right"),
    [
        (Outcome.COMMITTED, True, (ONE, OTHER), True),
        (Outcome.COMMITTED, True, (ONE,), False),
        (Outcome.COMMITTED, True, (), False),
        (Outcome.ABORTED, True, (), True),
        (Outcome.ABORTED, True, (ONE,), False),
        (None, False, (), True),
        (None, False, (ONE, OTHER), False),
        (None, True, (), True),
        (None, True, (ONE, OTHER), True),
        (None, True, (OTHER,), False),
    ],
)
def test_a_transaction_is_visible_as_a_whole_or_not(
    cluster: Cluster,
    outcome: Outcome | None,
    asked: bool,
    visible: tuple[Place, ...],
    is_right: bool,
) -> None:
    transaction = cluster.transaction(ONE, OTHER, outcome=outcome, asked=asked)
    found = {
        place: [(0, value) for value in transaction.sent[place]] if place in visible else []
        for place in (ONE, OTHER)
    }
    cluster.checker(AllOrNothing).finals(found)
    assert cluster.is_clean == is_right


def test_a_record_that_was_deleted_or_lost_is_not_missing(cluster: Cluster) -> None:
    cluster.transaction(ONE, outcome=Outcome.COMMITTED)
    cluster.log(ONE).expired_to = 1
    cluster.checker(AllOrNothing).finals({ONE: []})
    assert not cluster.found


@pytest.mark.parametrize("legs", [(5, -5), (5,)])
def test_transfers_add_up_to_zero(cluster: Cluster, legs: tuple[int, ...]) -> None:
    amounts = {b"a": 5, b"b": -5}
    found = {ONE: [(n, list(amounts)[n]) for n in range(len(legs))]}
    cluster.checker(SumIsTheSame).finals(found, amounts)
    assert cluster.is_clean == (sum(legs) == 0)


def test_a_marker_needs_a_committed_decision(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_COMMIT, commits=False)
    cluster.append(ONE, marker(Kind.COMMIT))
    assert cluster.found == ["DecisionsComeFirst"]


def test_a_marker_says_what_was_decided(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_ABORT)
    cluster.append(ONE, marker(Kind.COMMIT))
    assert cluster.found == ["DecisionsComeFirst"]


@pytest.mark.parametrize("is_marked", [True, False])
def test_an_end_is_recorded_after_the_markers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    topic = SimpleNamespace(topic_id=ONE.topic_id)
    image = SimpleNamespace(topic=lambda name: topic, topic_by_id=lambda _: None, topic_names={})
    monkeypatch.setattr(cluster.state.cluster_history, "image", image)
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_COMMIT)
    if is_marked:
        cluster.append(ONE, marker(Kind.COMMIT))
    cluster.decide(Status.COMPLETE_COMMIT)
    assert cluster.found == ([] if is_marked else ["DecisionsComeFirst"])


@pytest.mark.parametrize(
    ("states", "is_right"),
    [
        ((Status.EMPTY, Status.ONGOING, Status.PREPARE_COMMIT), True),
        ((Status.EMPTY, Status.PREPARE_COMMIT), False),
        ((Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT), False),
        ((Status.ONGOING, Status.PREPARE_ABORT, Status.COMPLETE_COMMIT), False),
    ],
)
def test_states_follow_each_other(
    cluster: Cluster, states: tuple[Status, ...], is_right: bool
) -> None:
    for status in states:
        cluster.decide(status, places=())
    assert ("StatesFollow" not in cluster.found) == is_right


@pytest.mark.parametrize(("started_ms", "is_right"), [(70, True), (60, True), (71, False)])
def test_added_partitions_do_not_extend_the_time_of_a_transaction(
    cluster: Cluster, started_ms: int, is_right: bool
) -> None:
    cluster.decide(Status.EMPTY, places=())
    cluster.decide(Status.ONGOING, started_ms=70)
    cluster.decide(Status.ONGOING, places=[ONE, OTHER], started_ms=started_ms)
    assert cluster.is_clean == is_right
    cluster.decide(Status.PREPARE_COMMIT, places=[ONE, OTHER], started_ms=started_ms)
    for place in (ONE, OTHER):
        cluster.append(place, marker(Kind.COMMIT))
    cluster.decide(Status.COMPLETE_COMMIT, started_ms=started_ms)
    cluster.decide(Status.ONGOING, started_ms=200)
    assert cluster.found == ([] if is_right else ["TimeoutsAreKept"])


# T4


@pytest.mark.parametrize(("reported", "is_right"), [(1, True), (3, False), (0, False)])
def test_the_last_stable_offset_is_that_of_a_scan(
    cluster: Cluster, reported: int, is_right: bool
) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, None, data(), None)
    checker = cluster.checker(StableOffsetIsThatOfTheLog)
    checker.stable(cluster.log(ONE), cluster.replicas[ONE], ReadableEnds(reported, 3), LEADER)
    assert cluster.is_clean == is_right


def test_the_last_stable_offset_waits_for_the_markers_replication(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_COMMIT)
    cluster.append(ONE, marker(Kind.COMMIT))
    checker = cluster.checker(StableOffsetIsThatOfTheLog)
    checker.stable(cluster.log(ONE), cluster.replicas[ONE], ReadableEnds(0, 1), LEADER)
    checker.stable(cluster.log(ONE), cluster.replicas[ONE], ReadableEnds(2, 2), LEADER)
    assert not cluster.found
    checker.stable(cluster.log(ONE), cluster.replicas[ONE], ReadableEnds(1, 1), LEADER)
    assert cluster.found == ["StableOffsetIsThatOfTheLog"]


@pytest.mark.parametrize("offset", [4, 5])
def test_the_last_stable_offset_reaches_the_end(cluster: Cluster, offset: int) -> None:
    cluster.checker(TransactionsEnd).ended(cluster.log(ONE), offset, 5, 1.0)
    assert cluster.is_clean == (offset == 5)


# T5


@pytest.mark.parametrize(
    ("producer", "asked_at", "code", "is_right"),
    [
        (Producer(7, 3), 0.0, ErrorCode.NONE, False),
        (Producer(7, 3), 0.0, ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (Producer(7, 3), -1.0, ErrorCode.NONE, True),
        (Producer(7, 4), 0.0, ErrorCode.NONE, True),
        (Producer(8, 3), 0.0, ErrorCode.NONE, True),
    ],
)
def test_a_zombie_is_refused(
    cluster: Cluster, producer: Producer, asked_at: float, code: ErrorCode, is_right: bool
) -> None:
    checker = cluster.checker(ZombiesAreRefused)
    checker.acknowledged(Producer(7, 4))
    checker.answered("a request", producer, asked_at, code)
    assert cluster.is_clean == is_right


def test_a_producer_epoch_is_given_to_one_instance(cluster: Cluster) -> None:
    checker = cluster.checker(EpochsAreGivenOnce)
    checker.given("a", Producer(7, 3), 0.0)
    checker.given("a", Producer(7, 3), 0.0)
    assert not cluster.found
    checker.given("b", Producer(7, 3), 0.0)
    assert cluster.found == ["EpochsAreGivenOnce"]


@pytest.mark.parametrize(
    "late",
    [data(Producer(7, 2)), marker(Kind.COMMIT, coordinator_epoch=1)],
    ids=["zombie", "late marker"],
)
def test_epochs_grow_in_a_log(cluster: Cluster, late: Stamp) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_COMMIT)
    cluster.append(ONE, marker(Kind.COMMIT, coordinator_epoch=2))
    assert not cluster.found
    cluster.append(ONE, late)
    assert "EpochsInLogsGrow" in cluster.found


def test_a_transaction_begins_in_a_log_only_while_it_is_ongoing(cluster: Cluster) -> None:
    cluster.decide(Status.ONGOING)
    cluster.append(ONE, data())
    cluster.decide(Status.PREPARE_COMMIT)
    cluster.append(ONE, marker(Kind.COMMIT))
    assert not cluster.found
    cluster.append(ONE, data())
    assert cluster.found == ["AppendedIsInTransaction"]


# T6


@pytest.mark.parametrize(
    ("outcome", "asked", "offset", "is_right"),
    [
        (Outcome.COMMITTED, True, 5, True),
        (Outcome.COMMITTED, True, -1, False),
        (None, True, 5, True),
        (None, True, -1, True),
        (None, False, 5, False),
        (Outcome.ABORTED, True, 5, False),
        (Outcome.COMMITTED, True, 6, False),
    ],
)
def test_a_position_is_that_of_a_committed_transaction(
    cluster: Cluster, outcome: Outcome | None, asked: bool, offset: int, is_right: bool
) -> None:
    transaction = cluster.transaction(ONE, outcome=outcome, asked=asked)
    history = cluster.checker(CommittedIsShown).history
    history.commits_offset(transaction, "group", ONE, 5)
    cluster.checker(PositionsAreCommitted).read("group", ONE, offset, 3.0, is_stable=True)
    assert cluster.is_clean == is_right


@pytest.mark.parametrize(
    ("position", "outputs", "is_right"),
    [
        (2, [b"of 0", b"of 1"], True),
        (2, [b"of 0"], False),
        (2, [b"of 0", b"of 1", b"of 1 again"], False),
        (1, [b"of 0", b"of 1"], False),
        (1, [b"of 0"], True),
        (2, [b"of 0", b"of 1", b"of 9"], False),
    ],
)
def test_each_input_has_one_output(
    cluster: Cluster, position: int, outputs: list[bytes], is_right: bool
) -> None:
    sources = {
        value: (ONE, offset)
        for value, offset in ((b"of 0", 0), (b"of 1", 1), (b"of 1 again", 1), (b"of 9", 9))
    }
    cluster.checker(ExactlyOnce).finals(
        "group",
        {ONE: [(0, b"a"), (1, b"b")]},
        {OTHER: list(enumerate(outputs))},
        {ONE: position},
        sources,
    )
    assert cluster.is_clean == is_right
