"""Batches of one coordinator record are those of the general encoder."""

import pytest

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.config.topic import TopicConfig
from metaquorum.dataplane.coordinators.appending import encoded_batches, encoded_record
from metaquorum.dataplane.coordinators.shard import CoordinatorRecord
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import parse_header


def config_of(**overrides: str) -> TopicConfig:
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    return TopicConfig.of(WorkerLayers().topic_configs(named), 1000)


@pytest.mark.parametrize("value", [None, b"", b"value", b"v" * 1000])
def test_batch_is_that_of_the_general_encoder(value: bytes | None) -> None:
    record = CoordinatorRecord(b"k" * 70, value)
    data, header = encoded_record(record, config_of(), 1_700_000_000_000)
    ((_, by_encoder),) = encoded_batches([record], config_of(), 1_700_000_000_000)
    assert data == by_encoder
    assert header == parse_header(data)


@pytest.mark.parametrize("limit", ["max_message_bytes", "segment_bytes"])
def test_record_that_is_too_large_is_refused(limit: str) -> None:
    record = CoordinatorRecord(b"k", b"v" * (2 << 20))
    with pytest.raises(KafkaError, match="exceeds max") as raised:
        encoded_record(record, config_of(**{limit: str(1 << 20)}), 0)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
