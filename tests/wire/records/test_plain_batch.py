"""`plain_batch` against the general checks: it accepts what they accept, with the same header."""

import random

import pytest

from metaquorum.wire.primitives.errors import KafkaError, WireError
from metaquorum.wire.records.batches import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    pack_batch,
    parse_header,
    produced_batch,
)
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.plain_batch import plain_batch
from metaquorum.wire.records.records import check_records, new_walk
from tests.wire.records.sample_batches import NOW, rewritten, sample
from tests.wire.records.test_record_walk import mutated, some_records

_VERSION = 11
_FIELDS = {
    "base_offset": (0, 1, -1),
    "attributes": (0, 0x10, 0x08, 0x20, 0x40, 1, 7, 0x80, -1),
    "last_offset_delta": (-1, 0, 1, 2, 4),
    "base_timestamp": (-1, 0, NOW, NOW + 1, (1 << 63) - 1, -(1 << 63)),
    "max_timestamp": (-1, 0, NOW, NOW + 2, (1 << 63) - 1),
    "producer_id": (-1, -5, 0, 7, 1 << 62),
    "producer_epoch": (-1, 0, 3),
    "base_sequence": (-1, 0, 5, (1 << 31) - 1),
    "record_count": (-1, 0, 1, 2, 3, 4),
}


def by_general_checks(batch: bytes) -> tuple[BatchHeader, int, int] | None:
    """Return the same as `plain_batch`, by the code that refuses batches."""
    try:
        header = produced_batch(memoryview(batch), _VERSION)
        if header.attributes & CODEC_MASK:
            return None
        walk = new_walk(header.record_count, header.last_offset_delta, True)
        for _ in check_records(batch, 0, header, walk):
            pass
    except (KafkaError, WireError):
        return None
    if header.base_timestamp + walk.max_timestamp_delta != header.max_timestamp:
        return None
    return header, header.base_timestamp + walk.min_timestamp_delta, walk.null_keys


@pytest.mark.parametrize("seed", range(300))
def test_it_accepts_what_the_general_checks_accept(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.choice((1, 1, 2, 3, 70))
    records = some_records(dice, count)
    batch = sample(count)
    header = parse_header(batch)
    walk = new_walk(count, count - 1, True)
    walk.check(records)
    largest = header.base_timestamp + walk.max_timestamp_delta
    batch = pack_batch(header._replace(max_timestamp=largest), records)
    assert plain_batch(memoryview(batch)) == by_general_checks(batch) != None  # noqa: E711
    for _ in range(20):
        changed = rewritten(
            batch,
            **{field: dice.choice(_FIELDS[field]) for field in dice.sample(sorted(_FIELDS), 2)},
        )
        if dice.random() < 0.5:
            changed = bytearray(mutated(dice, changed))
        elif dice.random() < 0.5:
            changed = pack_batch(header, mutated(dice, records))
        found = plain_batch(memoryview(changed))
        expected = by_general_checks(changed)
        if expected is not None and expected[0].attributes & ~(0x10):
            expected = None  # bits that only the general checks know
        assert found == expected


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_compressed_batch_is_not_plain(codec: Codec) -> None:
    assert plain_batch(memoryview(sample(codec=codec))) is None


def test_a_batch_with_a_part_of_a_header_is_not_plain() -> None:
    for size in range(HEADER_BYTES + 1):
        assert plain_batch(memoryview(sample()[:size])) is None
