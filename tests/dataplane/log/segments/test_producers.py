from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.segments.aborted import CompletedTransaction
from metaquorum.dataplane.log.segments.markers import marker_at
from metaquorum.dataplane.log.segments.producers import (
    BatchMetadata,
    ProducerEntry,
    ProducerStateTable,
)
from metaquorum.dataplane.log.segments.snapshots import decode_snapshot, encode_snapshot
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.records import (
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    encode_marker,
)
from tests.dataplane.log.logs import headers_of, make_batch

LAST = 2**31 - 1


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    """Return the header of a producer's batch; the records do not matter here."""
    one = headers_of(make_batch(1, producer_id=producer_id, producer_epoch=epoch, sequence=0))[0]
    return one._replace(base_sequence=sequence, last_offset_delta=count - 1, record_count=count)


def take(table: ProducerStateTable, *headers: BatchHeader, at: int = 0) -> None:
    for one in headers:
        assert table.check(one) is None
        at += one.last_offset_delta
        table.update(one, at, one.max_timestamp, 0)
        at += 1


def refusal(table: ProducerStateTable, one: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        table.check(one)
    return caught.value.code


def test_a_batch_without_producer_is_not_looked_at() -> None:
    assert ProducerStateTable().check(header(0, producer_id=-1)) is None


def test_the_first_batch_of_an_unknown_producer_may_have_any_sequence() -> None:
    """Its earlier batches may have expired (KIP-360)."""
    table = ProducerStateTable()
    take(table, header(17))
    assert refusal(table, header(17, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    take(table, header(18))


def test_a_gap_and_a_step_back_are_out_of_order() -> None:
    table = ProducerStateTable()
    take(table, header(0, 5))
    assert refusal(table, header(6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(table, header(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(table, header(0, 4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_of_the_last_five_is_a_duplicate_with_its_offset() -> None:
    table = ProducerStateTable()
    take(table, *(header(sequence, 2) for sequence in range(0, 12, 2)), at=100)
    assert refusal(table, header(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(2, 12, 2):
        mark = table.check(header(sequence, 2))
        assert mark is not None
        assert (mark.first_offset, mark.last_offset) == (100 + sequence, 101 + sequence)


def test_sequences_wrap_to_zero() -> None:
    table = ProducerStateTable()
    take(table, header(LAST - 1, 1), header(LAST, 1), header(0, 1))
    table = ProducerStateTable()
    take(table, header(LAST - 1, 4))
    mark = table.check(header(LAST - 1, 4))
    assert mark is not None
    assert mark.first_sequence == LAST - 1
    assert mark.last_sequence == 1
    take(table, header(2))


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    table = ProducerStateTable()
    take(table, header(0, 5))
    assert refusal(table, header(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    take(table, header(0, epoch=1))
    assert refusal(table, header(5)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(table, header(0, 5)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_ends_the_transaction_and_keeps_the_sequence() -> None:
    table = ProducerStateTable()
    begun = header(0, 3)
    begun = begun._replace(attributes=begun.attributes | 0x10)
    table.update(begun, 12, 0, 0)
    assert table.entries[7].transaction_first_offset == 10
    marker = encode_marker(
        EndTransactionMarker(ControlType.COMMIT, 4),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=0,
    )
    ended = table.end_transaction(
        headers_of(marker)[0], marker_at(marker, 0, headers_of(marker)[0]), 13, 0
    )
    assert ended == CompletedTransaction(7, 10, 13, 14, is_aborted=False)
    assert table.entries[7].transaction_first_offset == -1
    take(table, header(3))


def test_idle_producers_expire_but_not_in_a_transaction() -> None:
    table = ProducerStateTable(
        [
            ProducerEntry(1, 0, last_seen_ms=100),
            ProducerEntry(2, 0, last_seen_ms=101),
            ProducerEntry(3, 0, last_seen_ms=0, transaction_first_offset=5),
        ]
    )
    assert table.expire(1100, 1000) == 1
    assert sorted(table.entries) == [2, 3]


def test_no_number_of_other_producers_removes_a_producer_before_its_expiry() -> None:
    table = ProducerStateTable()
    take(table, header(0))
    count = 200_000  # above the limit that once evicted the longest idle
    for number in range(1, count + 1):
        table.entries[1000 + number] = ProducerEntry(1000 + number, 0, last_seen_ms=number)
    table.update(header(0, producer_id=5), 1, 0, now_ms=1)
    assert table.check(header(0)) is not None  # a retry is a duplicate
    data = encode_snapshot(table.entries.values())
    assert len(decode_snapshot(data)) == count + 2
    assert table.expire(count + 1000, 1000) == count + 2


marks = st.builds(
    BatchMetadata,
    st.integers(0, LAST),
    st.integers(0, 2**62),
    st.integers(0, LAST),
    st.integers(-1, 2**62),
)
entries = st.builds(
    ProducerEntry,
    st.integers(0, 2**62),
    st.integers(-1, 2**15 - 1),
    st.integers(0, 2**62),
    st.lists(marks, max_size=5),
    st.integers(-1, LAST),
    st.integers(-1, 2**62),
)


def fields(entry: ProducerEntry) -> list[object]:
    return [getattr(entry, name) for name in ProducerEntry.__slots__]


@given(st.lists(entries, max_size=4, unique_by=lambda entry: entry.producer_id), st.data())
def test_a_snapshot_is_what_was_known_and_no_cut_or_flip_is(
    known: list[ProducerEntry], data: st.DataObject
) -> None:
    encoded = encode_snapshot(known)
    table = decode_snapshot(encoded)
    assert [fields(entry) for entry in table.entries.values()] == [fields(e) for e in known]
    damaged = bytearray(encoded)
    damaged[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError):
        decode_snapshot(damaged)
    with pytest.raises(ValueError):
        decode_snapshot(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@dataclass
class NaiveProducer:
    """All batches ever accepted, and the rules in their plainest form."""

    epoch: int
    taken: list[tuple[int, int, int, int]] = field(default_factory=list)  # epoch, first, last, at

    def answer(self, epoch: int, first: int, last: int) -> int | ErrorCode | None:
        recent = [one for one in self.taken if one[0] == self.epoch][-5:]
        for old_epoch, old_first, old_last, at in recent:
            if (epoch, first, last) == (old_epoch, old_first, old_last):
                return at
        if epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        expected = 0 if epoch > self.epoch else (recent[-1][2] + 1) % 2**31
        return None if first == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@given(
    st.sampled_from([0, 3, LAST - 4]),
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, 1, -1, -2, -3, -6, -12]),  # relative to the next sequence
            st.integers(1, 3),
            st.sampled_from([0, 0, 0, 0, 1, -1]),
        ),
        max_size=40,
    ),
)
def test_the_table_answers_as_a_naive_reading_of_the_rules(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    table = ProducerStateTable()
    take(table, header(start, 1, epoch=5))
    naive = NaiveProducer(5, [(5, start, start, 0)])
    offset = 1
    for shift, count, bump in steps:
        epoch = max(naive.epoch + bump, 0)
        base = 0 if bump > 0 else naive.taken[-1][2] + 1
        first = (base + shift) % 2**31
        last = (first + count - 1) % 2**31
        expected = naive.answer(epoch, first, last)
        sent = header(first, count, epoch=epoch)
        if isinstance(expected, ErrorCode):
            assert refusal(table, sent) is expected
        elif expected is not None:
            mark = table.check(sent)
            assert mark is not None
            assert mark.first_offset == expected
        else:
            take(table, sent, at=offset)
            naive.epoch = epoch
            naive.taken.append((epoch, first, last, offset))
            offset += count
