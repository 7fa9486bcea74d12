"""Control batches of markers are those of the general encoder."""

import pytest

from metaquorum.dataplane.log.segments.markers import MARKER_BYTES, encoded
from metaquorum.dataplane.log.segments.producers import TransactionMarker
from metaquorum.wire.records.batches import parse_header
from metaquorum.wire.records.records import ControlType, EndTransactionMarker, encode_marker


@pytest.mark.parametrize("is_commit", [True, False])
def test_batch_is_that_of_the_general_encoder(is_commit: bool) -> None:
    marker = TransactionMarker(1 << 40, 32_767, 7, is_commit)
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    by_encoder = encode_marker(
        EndTransactionMarker(kind, 7),
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        timestamp_ms=1_700_000_000_000,
    )
    data, header, ends = encoded(marker, 1_700_000_000_000)
    assert data == bytes(by_encoder)
    assert len(data) == MARKER_BYTES
    assert header == parse_header(data)
    assert ends == EndTransactionMarker(kind, 7)
