"""RangeReader with a model broker: every offset of a range is a record or a gap with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.client.cluster import Cluster
from metaquorum.spark import partition_fetcher, range_reader
from metaquorum.spark.errors import DataLossError, LoadError
from metaquorum.spark.gaps import DATA_LOSS, MAX_LISTED_GAPS, Gap, GapReason
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.spark.options import DEFAULT_TIMEOUT_S, Connecting, FetchOptions
from metaquorum.spark.range_reader import CORRUPT_ATTEMPTS, Progress, RangeReader
from metaquorum.wire.messages.fetch import FetchRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.records.records import (
    Codec,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tests.examples import examples
from tests.metaquorum.spark.model_broker import TOPIC, TOPIC_ID, ModelBroker, PartitionLog

CONNECTING = Connecting("model:0", timeout_s=30.0)
COMMITTED = FetchOptions(CONNECTING, read_committed=True, fail_on_data_loss=False)
UNCOMMITTED = FetchOptions(CONNECTING, read_committed=False, fail_on_data_loss=False)
STRICT = FetchOptions(CONNECTING)
Truth = dict[int, bytes | GapReason]


@dataclass
class History:
    """A log, and what each of its offsets is to a reader; `compacted` has lost keys."""

    log: PartitionLog
    committed: Truth
    uncommitted: Truth

    def truth(self, options: FetchOptions) -> Truth:
        return self.committed if options.read_committed else self.uncommitted


def value_of(offset: int) -> bytes:
    return f"value {offset} ".encode() * (1 + offset % 3)


def new_batch(
    offsets: list[int], base: int, last: int, epoch: int, producer: int = -1, **more: object
) -> bytes:
    records = [
        Record(offset, 1000 + offset, b"k" if offset % 2 else None, value_of(offset))
        for offset in offsets
    ]
    transactional = producer >= 0
    return bytes(
        encode_batch(
            records,
            base_offset=base,
            last_offset=last,
            leader_epoch=epoch,
            producer_id=producer,
            producer_epoch=0 if transactional else -1,
            base_sequence=0 if transactional else -1,
            transactional=transactional,
            **more,  # type: ignore[arg-type]
        )
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw a log with transactions, markers, elections, compaction and retention."""
    log = PartitionLog(epochs=[(3, 0)])
    committed: Truth = {}
    open_since: dict[int, int] = {}
    written: dict[int, list[int]] = {}
    offset, epoch = 0, 3
    parts: list[tuple[int, int, bytes]] = []
    for _ in range(draw(st.integers(1, 14))):
        step = draw(st.sampled_from(["plain", "transactional", "transactional", "end", "election"]))
        if step == "election":
            epoch += draw(st.integers(1, 3))
            log.epochs.append((epoch, offset))
            continue
        if step == "end":
            if not open_since:
                continue
            producer = draw(st.sampled_from(sorted(open_since)))
            first = open_since.pop(producer)
            kind = draw(st.sampled_from(ControlType))
            if kind is ControlType.ABORT:
                log.aborted.append((producer, first, offset))
                committed.update(dict.fromkeys(written[producer], GapReason.ABORTED))
            marker = encode_marker(
                EndTransactionMarker(kind, 0),
                producer_id=producer,
                producer_epoch=0,
                timestamp_ms=5,
                offset=offset,
                leader_epoch=epoch,
            )
            committed[offset] = GapReason.CONTROL
            parts.append((offset, offset + 1, bytes(marker)))
            offset += 1
            continue
        count = draw(st.integers(1, 12))
        offsets = list(range(offset, offset + count))
        kept = draw(st.one_of(st.just(offsets), st.lists(st.sampled_from(offsets), unique=True)))
        producer = draw(st.integers(0, 1)) if step == "transactional" else -1
        for one in offsets:
            committed[one] = value_of(one) if one in kept else GapReason.COMPACTED
        if producer >= 0:
            open_since.setdefault(producer, offset)
            written.setdefault(producer, [])
            if open_since[producer] == offset:
                written[producer] = []
            # Offsets of an aborted batch that compaction removed count as aborted, too.
            written[producer] += offsets
        codec = draw(st.sampled_from(Codec))
        batch = new_batch(sorted(kept), offset, offset + count - 1, epoch, producer, codec=codec)
        if kept or draw(st.booleans()):
            parts.append((offset, offset + count, batch))
        else:
            written.get(producer, [])[-count:] = []
        offset += count
    # Compaction never removes the last batch.
    if not parts or parts[-1][1] < offset:
        parts.append((offset, offset + 1, new_batch([offset], offset, offset, epoch)))
        committed[offset] = value_of(offset)
        offset += 1
    log.log_end = log.high_watermark = offset
    log.last_stable_offset = min(open_since.values(), default=offset)
    uncommitted = {
        one: what if what is not GapReason.ABORTED else value_of(one)
        for one, what in committed.items()
    }
    stored = {}
    for first, behind, batch in parts:
        stored.update(dict.fromkeys(range(first, behind), batch))
    for one in uncommitted:
        if committed[one] is GapReason.ABORTED and not _holds(stored[one], one):
            uncommitted[one] = GapReason.COMPACTED
    log.batches = [batch for _, _, batch in parts]
    log.log_start = draw(st.one_of(st.just(0), st.integers(0, offset)))
    log.batches = [batch for _, behind, batch in parts if behind > log.log_start]
    for truth in (committed, uncommitted):
        truth.update(dict.fromkeys(range(log.log_start), GapReason.DELETED))
    return History(log, committed, uncommitted)


def _holds(batch: bytes, offset: int) -> bool:
    from metaquorum.wire.records.records import iter_records

    return any(record.offset == offset for record in iter_records(batch))


@contextmanager
def cluster_of(
    broker: ModelBroker, timeout_s: float = 30.0, *, bootstrap: int = 0
) -> Iterator[Cluster]:
    cluster = Cluster(
        broker,
        [("model", bootstrap)],
        client_id="test",
        timeout_s=timeout_s,
        random=Random("reader"),
    )
    try:
        yield cluster
    finally:
        cluster.close()


def range_of(start: int, end: int, epoch: int = -1) -> OffsetRange:
    return OffsetRange(TOPIC, 0, start, end, TOPIC_ID, epoch)


def read(
    broker: ModelBroker,
    range_: OffsetRange,
    options: FetchOptions,
    *,
    is_compacted: bool | None = True,
) -> tuple[dict[int, bytes], RangeReader]:
    with cluster_of(broker) as cluster:
        reader = RangeReader(cluster, range_, options, is_compacted=is_compacted)
        found: dict[int, bytes] = {}
        for batch in reader:
            assert batch.num_rows
            for offset, value in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                assert offset not in found
                found[offset] = value
        assert list(found) == sorted(found)
        return found, reader


def accounted(reader: RangeReader) -> Mapping[int, GapReason]:
    """Return the reason of each offset in the gaps, after a check of their order."""
    report = reader.report
    assert report is not None
    for one, other in pairwise(report.gaps):
        assert one.end <= other.start
        assert (one.end, one.reason, one.detail) != (other.start, other.reason, other.detail)
    assert report.gap_count == len(report.gaps)
    found = {}
    for gap in report.gaps:
        assert gap.start < gap.end
        found.update(dict.fromkeys(range(gap.start, gap.end), gap.reason))
    totals: dict[GapReason, int] = {}
    for reason in found.values():
        totals[reason] = totals.get(reason, 0) + 1
    assert report.missing == totals
    return found


@examples(400)
@given(histories(), st.data())
def test_every_offset_is_a_record_or_a_gap_with_its_reason(
    history: History, data: st.DataObject
) -> None:
    log = history.log
    options = data.draw(st.sampled_from([COMMITTED, UNCOMMITTED]))
    limit = log.last_stable_offset if options.read_committed else log.high_watermark
    start = data.draw(st.integers(0, limit))
    end = data.draw(st.integers(start, limit))
    broker = ModelBroker(log, fetch_version=data.draw(st.sampled_from([4, 11, 12, 16])))
    broker.max_bytes = data.draw(st.sampled_from([1, 150, 400, 1 << 20]))
    found, reader = read(broker, range_of(start, end, log.epochs[-1][0]), options)
    truth = history.truth(options)
    wanted = {o: v for o, v in truth.items() if start <= o < end}
    assert {**found, **accounted(reader)} == wanted
    report = reader.report
    assert report is not None
    assert report.records == len(found)
    assert report.first_offset == min(found, default=None)
    assert report.last_offset == max(found, default=None)
    if found:
        assert report.min_timestamp_ms == 1000 + min(found)
        assert report.max_timestamp_ms == 1000 + max(found)


def plain_log(count: int, *, epoch: int = 3, each: int = 10) -> PartitionLog:
    log = PartitionLog(epochs=[(epoch, 0)])
    for base in range(0, count, each):
        offsets = list(range(base, base + each))
        log.batches.append(new_batch(offsets, base, base + each - 1, epoch))
    log.log_end = log.high_watermark = log.last_stable_offset = count
    return log


def everything(count: int) -> dict[int, bytes]:
    return {offset: value_of(offset) for offset in range(count)}


# Brokers that move, die, throttle


def test_the_next_fetch_is_sent_before_the_last_response_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_reader, "MAX_BATCH_ROWS", 1)
    broker = ModelBroker(plain_log(40))
    broker.max_bytes = 1
    with cluster_of(broker) as cluster:
        batches = iter(RangeReader(cluster, range_of(0, 40), STRICT))
        assert next(batches).num_rows == 10
        assert [one.topics[0].partitions[0].fetch_offset for _, one in broker.fetches] == [0, 10]
        assert sum(batch.num_rows for batch in batches) == 30


@pytest.mark.parametrize("each", [1, 10])  # records in a batch
def test_a_leader_that_moves_or_dies_is_found_again_and_nothing_is_doubled(each: int) -> None:
    broker = ModelBroker(plain_log(100, each=each), nodes=3)
    broker.max_bytes = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        offset = request.topics[0].partitions[0].fetch_offset
        if offset == 30 and node == 0:
            broker.leader = 1
        if offset == 60 and node == 1:
            broker.down.add(1)
            broker.leader = 2
        return None

    broker.before_fetch = on_fetch
    found, _ = read(broker, range_of(0, 100), STRICT)
    assert found == everything(100)
    assert {node for node, _ in broker.fetches} == {0, 1, 2}


def test_a_range_that_was_left_half_way_is_read_again() -> None:
    """On the same connections: the client discards the response that was in flight."""
    broker = ModelBroker(plain_log(60))
    broker.max_bytes = 1
    with cluster_of(broker) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reader, "MAX_BATCH_ROWS", 1)
        left = iter(RangeReader(cluster, range_of(0, 60), STRICT))
        assert next(left).num_rows == 10
        left.close()  # type: ignore[attr-defined]
        again = RangeReader(cluster, range_of(0, 60), STRICT, is_compacted=False)
        assert [offset for one in again for offset in one["offset"].to_pylist()] == list(range(60))


def test_records_behind_the_range_are_not_read() -> None:
    for start, end in ((3, 7), (13, 25), (0, 1)):
        found, _ = read(ModelBroker(plain_log(60)), range_of(start, end), STRICT)
        assert found == {offset: value_of(offset) for offset in range(start, end)}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_what_may_pass_is_asked_again(error: ErrorCode) -> None:
    broker = ModelBroker(plain_log(20))
    refusals = [error] * 3
    broker.before_fetch = lambda _node, _request: refusals.pop() if refusals else None
    assert read(broker, range_of(0, 20), STRICT)[0] == everything(20)
    assert not refusals


def test_what_does_not_pass_is_an_error_that_names_the_partition() -> None:
    broker = ModelBroker(plain_log(20))
    broker.before_fetch = lambda _node, _request: ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(LoadError, match=r"t-0, offsets 0 to 19: .*authorization"):
        read(broker, range_of(0, 20), STRICT)
    assert len(broker.fetches) == 1


def test_a_cluster_that_is_gone_is_an_error_after_the_timeout() -> None:
    broker = ModelBroker(plain_log(20))

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        broker.down.add(0)
        return None

    broker.before_fetch = on_fetch
    with pytest.raises(LoadError, match="t-0, offsets 0 to 19"):
        read(broker, range_of(0, 20), STRICT)
    assert broker.slept_s < 60


@pytest.mark.parametrize("timeout_s", [0.4, 5.0, 20.0])
def test_a_leader_that_lost_power_is_waited_for_no_longer_than_the_timeout(
    timeout_s: float,
) -> None:
    broker = ModelBroker(plain_log(20))

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        broker.silent.add(0)
        return None

    broker.before_fetch = on_fetch
    with cluster_of(broker, timeout_s) as cluster:
        begun = broker.monotonic()
        with pytest.raises(LoadError, match=r"t-0, offsets 0 to 19.*timed out"):
            list(RangeReader(cluster, range_of(0, 20), STRICT))
        # A long poll may be answered after MAX_WAIT_MS, however short the timeout is.
        waited_s = broker.monotonic() - begun
        assert timeout_s <= waited_s <= timeout_s + partition_fetcher.MAX_WAIT_MS / 1000


def test_the_leader_after_one_that_lost_power_is_read_from() -> None:
    broker = ModelBroker(plain_log(40), nodes=2)
    broker.max_bytes = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if request.topics[0].partitions[0].fetch_offset == 20 and node == 0:
            broker.silent.add(0)
            broker.leader = 1
        return None

    broker.before_fetch = on_fetch
    with cluster_of(broker, DEFAULT_TIMEOUT_S, bootstrap=1) as cluster:
        reader = RangeReader(cluster, range_of(0, 40), STRICT)
        assert sum(batch.num_rows for batch in reader) == 40
    assert [node for node, _ in broker.fetches] == [0, 0, 0, 1, 1]


def test_throttle_times_are_waited_out_and_told() -> None:
    broker = ModelBroker(plain_log(40))
    broker.max_bytes = 1
    broker.throttle_ms = 2000
    told: list[Progress] = []
    with cluster_of(broker) as cluster:
        reader = RangeReader(cluster, range_of(0, 40), STRICT, on_progress=told.append)
        assert sum(batch.num_rows for batch in reader) == 40
    assert broker.slept_s == pytest.approx(6.0)  # between four fetches
    assert [one.throttled_ms for one in told] == [2000, 4000, 6000, 8000]
    assert [one.position for one in told] == [10, 20, 30, 40]
    assert reader.report is not None
    assert reader.report.throttled_ms == 8000


def test_a_broker_that_throttles_may_answer_with_nothing() -> None:
    """A throttle time longer than the timeout is not a failure."""
    broker = ModelBroker(plain_log(20))
    broker.throttle_ms, broker.is_empty_when_throttled = 9_000, True

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if len(broker.fetches) == 6:
            broker.is_empty_when_throttled = False
        return None

    broker.before_fetch = on_fetch
    found, reader = read(broker, range_of(0, 20), STRICT)
    assert found == everything(20)
    assert reader.report is not None
    assert reader.report.throttled_ms == 54_000
    assert broker.slept_s == pytest.approx(45.0)


def test_the_nearest_replica_is_read_from_and_left_when_it_fails() -> None:
    broker = ModelBroker(plain_log(100), nodes=2)
    broker.max_bytes = 1
    broker.preferred = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        offset = request.topics[0].partitions[0].fetch_offset
        if node == 1 and offset == 50:
            return ErrorCode.OFFSET_OUT_OF_RANGE  # a follower that lags
        return None

    broker.before_fetch = on_fetch
    options = replace(STRICT, connecting=replace(CONNECTING, rack="b"))
    found, _ = read(broker, range_of(0, 100), options)
    assert found == everything(100)
    nodes = [node for node, _ in broker.fetches]
    assert nodes == [0, *[1] * 6, *[0] * 5]


# Deleted, truncated and replaced records


def test_deleted_records_are_an_error_or_a_gap() -> None:
    log = plain_log(50)
    log.log_start, log.batches = 25, log.batches[2:]
    with pytest.raises(
        DataLossError, match="offsets 0 to 24 of t-0 are deleted: the log start offset is"
    ):
        read(ModelBroker(log), range_of(0, 50), STRICT)
    found, reader = read(ModelBroker(log), range_of(0, 50), UNCOMMITTED)
    assert found == {offset: value_of(offset) for offset in range(25, 50)}
    assert accounted(reader) == dict.fromkeys(range(25), GapReason.DELETED)
    found, reader = read(ModelBroker(log), range_of(3, 20), UNCOMMITTED)
    assert found == {}
    assert accounted(reader) == dict.fromkeys(range(3, 20), GapReason.DELETED)


def test_retention_that_overtakes_the_reader() -> None:
    log = plain_log(50)
    broker = ModelBroker(log)
    broker.max_bytes = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if request.topics[0].partitions[0].fetch_offset == 20:
            log.log_start, log.batches = 40, plain_log(50).batches[4:]
        return None

    broker.before_fetch = on_fetch
    found, reader = read(broker, range_of(0, 50), UNCOMMITTED)
    assert sorted(found) == [*range(20), *range(40, 50)]
    assert accounted(reader) == dict.fromkeys(range(20, 40), GapReason.DELETED)


def test_a_hole_in_a_topic_without_compaction_is_no_compaction() -> None:
    log = plain_log(50)
    del log.batches[2]
    assert read(ModelBroker(log), range_of(0, 50), STRICT)[0].keys() == {
        *range(20),
        *range(30, 50),
    }
    with pytest.raises(DataLossError, match="offsets 20 to 29 of t-0 are unexplained"):
        read(ModelBroker(log), range_of(0, 50), STRICT, is_compacted=False)
    _, reader = read(ModelBroker(log), range_of(0, 50), UNCOMMITTED, is_compacted=False)
    assert accounted(reader) == dict.fromkeys(range(20, 30), GapReason.UNEXPLAINED)


def test_a_hole_in_a_topic_of_an_unknown_policy_is_no_data_loss() -> None:
    """A load without the right to describe the topic's configs does not know `cleanup.policy`."""
    log = plain_log(50)
    del log.batches[2]
    found, reader = read(ModelBroker(log), range_of(0, 50), STRICT, is_compacted=None)
    assert found.keys() == {*range(20), *range(30, 50)}
    assert accounted(reader) == dict.fromkeys(range(20, 30), GapReason.COMPACTED)


def cut_log(at: int, upto: int) -> PartitionLog:
    """Return 50 records in epoch 3, truncated at `at`, and those up to `upto` in epoch 5."""
    log = plain_log(50)
    log.batches = log.batches[: at // 10]
    if upto > at:
        log.epochs.append((5, at))
        log.batches.append(new_batch(list(range(at, upto)), at, upto - 1, 5))
    log.log_end = log.high_watermark = log.last_stable_offset = upto
    return log


@pytest.mark.parametrize("upto", [40, 50, 60])
def test_records_that_were_replaced_are_not_taken_for_those_of_the_plan(upto: int) -> None:
    log = cut_log(30, upto)
    with pytest.raises(
        DataLossError, match="replaced: the log was truncated since the plan was made"
    ):
        read(ModelBroker(log), range_of(0, 50, 3), STRICT)
    # A range before the truncation is read normally.
    assert read(ModelBroker(log), range_of(0, 30, 3), STRICT)[0] == everything(30)
    found, reader = read(ModelBroker(log), range_of(0, 50, 3), UNCOMMITTED)
    assert found == everything(min(50, upto))
    report = reader.report
    assert report is not None
    wanted = {GapReason.REPLACED: min(50, upto) - 30}
    if upto < 50:
        wanted[GapReason.TRUNCATED] = 50 - upto
    assert report.missing == wanted


def test_a_log_that_was_cut_and_not_written_again_is_truncated() -> None:
    log = cut_log(30, 30)
    log.epochs.append((5, 30))
    with pytest.raises(
        DataLossError, match="offsets 30 to 49 of t-0 are truncated: the log was truncated and ends"
    ):
        read(ModelBroker(log), range_of(0, 50, 3), STRICT)
    with pytest.raises(
        DataLossError, match="offsets 40 to 49 of t-0 are truncated: the log was truncated and ends"
    ):
        read(ModelBroker(log), range_of(40, 50, 3), STRICT)
    _, reader = read(ModelBroker(log), range_of(0, 50, 3), UNCOMMITTED)
    assert accounted(reader) == dict.fromkeys(range(30, 50), GapReason.TRUNCATED)


def test_compaction_of_replaced_records_is_no_second_gap() -> None:
    log = cut_log(30, 30)
    log.epochs.append((5, 30))
    log.batches.append(new_batch([31, 34], 30, 39, 5))
    log.batches.append(new_batch([42], 42, 51, 5))
    log.log_end = log.high_watermark = log.last_stable_offset = 52
    for end, offsets in ((50, {31, 34, 42}), (41, {31, 34})):
        found, reader = read(ModelBroker(log), range_of(0, end, 3), UNCOMMITTED)
        assert found.keys() == {*range(30), *offsets}
        assert accounted(reader) == dict.fromkeys(range(30, end), GapReason.REPLACED)


def test_a_hole_before_replaced_records_is_compacted_up_to_the_cut_only() -> None:
    log = plain_log(50)
    log.batches = [*log.batches[:2], new_batch([45], 40, 49, 5)]
    log.epochs.append((5, 30))
    found, reader = read(ModelBroker(log), range_of(0, 50, 3), UNCOMMITTED)
    assert found == {**everything(20), 45: value_of(45)}
    assert accounted(reader) == {
        **dict.fromkeys(range(20, 30), GapReason.COMPACTED),
        **dict.fromkeys(range(30, 50), GapReason.REPLACED),
    }
    # No offset of the range is left: the records after the range reveal the truncation.
    with pytest.raises(DataLossError, match="offsets 30 to 37 of t-0 are replaced"):
        read(ModelBroker(log), range_of(0, 38, 3), STRICT)
    found, _ = read(ModelBroker(log), range_of(0, 30, 3), STRICT)
    assert found == everything(20)
    # A new leader that only appends after the end of the plan has replaced no record.
    log.epochs[-1] = (5, 38)
    found, _ = read(ModelBroker(log), range_of(0, 38, 3), STRICT)
    assert found == everything(20)


def test_the_ledger_is_asked_for_while_the_response_is_still_decoded() -> None:
    """Its response must not overwrite the buffer that the records refer to."""
    broker = ModelBroker(cut_log(30, 50))
    broker.truncations = [(30, 49)] * 9
    found, reader = read(broker, range_of(30, 50, 3), UNCOMMITTED)
    assert found == {offset: value_of(offset) for offset in range(30, 50)}
    assert reader.report is not None
    (gap,) = reader.report.gaps
    assert "node 0 removed offsets 30 to 49" in gap.detail
    assert len(broker.fetches) == 1  # nothing had to be fetched again


def test_a_topic_that_is_made_again_while_its_end_is_asked_for_is_not_truncated() -> None:
    """Before topic ids (Fetch 12) an offset out of range may be that of another topic."""
    log = plain_log(50)
    broker = ModelBroker(log, fetch_version=12)
    broker.max_bytes = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if request.topics[0].partitions[0].fetch_offset == 20:
            broker.topic_id = bytes(15) + b"x"
            log.log_end = log.high_watermark = log.last_stable_offset = 0
            log.epochs, log.batches = [(4, 0)], []
        return None

    broker.before_fetch = on_fetch
    found, reader = read(broker, range_of(0, 50, 3), UNCOMMITTED)
    assert found == everything(20)
    assert accounted(reader) == dict.fromkeys(range(20, 50), GapReason.DELETED)


def test_a_high_watermark_that_lags_is_waited_for() -> None:
    log = plain_log(50)
    log.high_watermark = 20
    broker = ModelBroker(log)

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if len(broker.fetches) > 4:
            log.high_watermark = 50
        return None

    broker.before_fetch = on_fetch
    assert read(broker, range_of(0, 50, 3), STRICT)[0] == everything(50)


def test_a_high_watermark_that_stays_behind_is_an_error_and_no_data_loss() -> None:
    log = plain_log(50)
    log.high_watermark = 20
    with pytest.raises(LoadError, match="can be read only up to offset 20") as raised:
        read(ModelBroker(log), range_of(0, 50, 3), UNCOMMITTED)
    assert not isinstance(raised.value, DataLossError)


@pytest.mark.parametrize("version", [12, 16])
def test_a_topic_that_was_made_anew_is_not_read(version: int) -> None:
    broker = ModelBroker(plain_log(50), fetch_version=version)
    broker.topic_id = bytes(16)[:15] + b"x"
    with pytest.raises(DataLossError, match="topic t was deleted and created again"):
        read(broker, range_of(0, 50, 3), STRICT)
    assert not broker.fetches
    found, reader = read(broker, range_of(0, 50, 3), UNCOMMITTED)
    assert found == {}
    assert accounted(reader) == dict.fromkeys(range(50), GapReason.DELETED)


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_vanishes_in_mid_range(is_made_again: bool) -> None:
    broker = ModelBroker(plain_log(50))
    broker.max_bytes = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if request.topics[0].partitions[0].fetch_offset == 20:
            broker.topic_id = bytes(15) + b"x"
            broker.exists = is_made_again
        return None

    broker.before_fetch = on_fetch
    found, reader = read(broker, range_of(0, 50, 3), UNCOMMITTED)
    assert sorted(found) == list(range(20))
    assert accounted(reader) == dict.fromkeys(range(20, 50), GapReason.DELETED)


def test_compaction_up_to_an_open_transaction_leaves_nothing_to_fetch() -> None:
    """The broker sends no batch, because the next one is not readable yet."""
    log = plain_log(50)
    log.last_stable_offset = 30
    log.batches = [log.batches[0], *log.batches[3:]]
    found, reader = read(ModelBroker(log), range_of(0, 30, 3), COMMITTED)
    assert found == everything(10)
    assert accounted(reader) == dict.fromkeys(range(10, 30), GapReason.COMPACTED)


# Damage


def test_a_corrupt_batch_is_fetched_again_before_it_is_believed() -> None:
    log = plain_log(50)
    good = log.batches[2]
    log.batches[2] = good[:-1] + bytes([good[-1] ^ 1])
    broker = ModelBroker(log)

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        if len(broker.fetches) == 3:
            log.batches[2] = good
        return None

    broker.before_fetch = on_fetch
    assert read(broker, range_of(0, 50), STRICT)[0] == everything(50)


def test_attempts_for_one_corrupt_batch_do_not_count_for_the_next() -> None:
    log = plain_log(50)
    good = list(log.batches)
    damaged = {1: CORRUPT_ATTEMPTS - 1, 3: CORRUPT_ATTEMPTS - 1}  # attempts that fail
    broker = ModelBroker(log)
    broker.max_bytes = 1

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        place = request.topics[0].partitions[0].fetch_offset // 10
        batch = good[place]
        if damaged.get(place):
            damaged[place] -= 1
            batch = batch[:-1] + bytes([batch[-1] ^ 1])
        log.batches[place] = batch
        return None

    broker.before_fetch = on_fetch
    assert read(broker, range_of(0, 50), STRICT)[0] == everything(50)
    assert not any(damaged.values())


@pytest.mark.parametrize("place", [2, 4])
def test_a_corrupt_batch_is_an_error_or_a_gap(place: int) -> None:
    log = plain_log(50)
    batch = log.batches[place]
    log.batches[place] = batch[:-1] + bytes([batch[-1] ^ 1])
    base = 10 * place
    with pytest.raises(DataLossError, match=f"offsets {base} to {base + 9} of t-0 are corrupt"):
        read(ModelBroker(log), range_of(0, 50), STRICT)
    found, reader = read(ModelBroker(log), range_of(0, 50), UNCOMMITTED)
    gap = range(base, base + 10)
    assert sorted(found) == [offset for offset in range(50) if offset not in gap]
    assert accounted(reader) == dict.fromkeys(gap, GapReason.CORRUPT)


def test_records_that_make_no_sense_behind_a_right_checksum() -> None:
    log = plain_log(30)
    from metaquorum.wire.records.records import pack_batch, parse_header

    header = parse_header(log.batches[1])
    body = bytearray(log.batches[1][61:])
    body[-1] = 9  # count of headers, which are missing
    log.batches[1] = bytes(pack_batch(header, bytes(body)))
    with pytest.raises(DataLossError, match="corrupt"):
        read(ModelBroker(log), range_of(0, 30), STRICT)
    found, reader = read(ModelBroker(log), range_of(0, 30), UNCOMMITTED)
    assert set(found) | set(accounted(reader)) == set(range(30))
    assert set(found) & set(accounted(reader)) == set()


def test_what_compaction_took_before_damage_is_accounted_for() -> None:
    """The last of several pieces of the batch is malformed."""
    from metaquorum.wire.records.records import pack_batch, parse_header

    log = PartitionLog(epochs=[(3, 0)])
    count = 20_000
    batch = new_batch(list(range(0, count, 2)), 0, count - 1, 3)
    body = bytearray(batch[61:])
    body[-1] = 9  # count of headers, which are missing
    log.batches = [bytes(pack_batch(parse_header(batch), bytes(body)))]
    log.log_end = log.high_watermark = count
    found, reader = read(ModelBroker(log), range_of(0, count), UNCOMMITTED)
    report = reader.report
    assert report is not None
    assert found
    assert len(found) + sum(report.missing.values()) == count
    assert report.missing[GapReason.COMPACTED] == len(found) - 1


@pytest.mark.parametrize("magic", [0, 1, 7])
def test_formats_that_are_not_spoken_are_an_error(magic: int) -> None:
    log = plain_log(30)
    batch = bytearray(log.batches[1])
    batch[16] = magic
    broker = ModelBroker(log)
    good = list(log.batches)

    def on_fetch(node: int, request: FetchRequest) -> ErrorCode | None:
        log.batches = good
        return None

    broker.before_fetch = on_fetch
    original = broker._data

    def damaged(node: int, request: FetchRequest) -> object:
        data = original(node, request)
        records = bytes(data.records or b"")
        data.records = records.replace(good[1], bytes(batch))
        return data

    broker._data = damaged  # type: ignore[method-assign, assignment]
    with pytest.raises(LoadError, match="older format" if magic < 2 else "no record batch"):
        read(broker, range_of(0, 30), UNCOMMITTED)


# Bounds


def test_gaps_beyond_the_list_are_counted() -> None:
    log = PartitionLog(epochs=[(3, 0)])
    count = 3 * MAX_LISTED_GAPS
    log.batches = [new_batch(list(range(0, count, 2)), 0, count - 1, 3)]
    log.log_end = log.high_watermark = count
    found, reader = read(ModelBroker(log), range_of(0, count), STRICT)
    assert len(found) == count // 2
    report = reader.report
    assert report is not None
    assert len(report.gaps) == MAX_LISTED_GAPS
    assert report.gap_count == count // 2
    assert report.missing == {GapReason.COMPACTED: count // 2}


def test_an_empty_range_asks_nothing() -> None:
    broker = ModelBroker(plain_log(50))
    found, reader = read(broker, range_of(20, 20), STRICT)
    assert (found, broker.fetches) == ({}, [])
    assert reader.report is not None
    assert reader.report.records == 0


def test_data_loss_errors_survive_pickling_as_spark_sends_them() -> None:
    import pickle

    gap = Gap(1, 3, GapReason.DELETED, "why")
    error = DataLossError(range_of(0, 5), gap, "--allow-data-loss")
    assert "With --allow-data-loss the load continues" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.gap) == (str(error), error.gap)
    assert GapReason.DELETED in DATA_LOSS
