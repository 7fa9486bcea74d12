"""Mutants of the validation of produced batches: each removes one rule."""

from contextlib import AbstractContextManager
from typing import Any, Final

from dataplane.handlers import produce
from dataplane.partition import batch_validation
from simulations.kernel.mutation import Mutant, swapped
from wire.primitives.errors import KafkaError
from wire.records.batches import CODEC_MASK, produced_batch
from wire.records.record_walk import RecordWalk


def _count_not_checked() -> AbstractContextManager[None]:
    return swapped(RecordWalk, "finish", lambda right: lambda self, left_bytes: None)


def _deltas_not_checked() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        return lambda count, last_offset_delta, dense: right(count, (1 << 31) - 1, False)

    return swapped(batch_validation, "new_walk", wrong)


def _compressed_not_walked() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def check_records(buffer: Any, position: int, header: Any, walk: Any) -> Any:
            if header.attributes & CODEC_MASK:
                return iter(())
            return right(buffer, position, header, walk)

        return check_records

    return swapped(batch_validation, "check_records", wrong)


def _many_not_walked() -> AbstractContextManager[None]:
    """Accept batches without validation in worker threads."""

    def wrong(right: Any) -> Any:
        async def validated(
            worker: Any, client: Any, partition: Any, records: Any, header: Any
        ) -> Any:
            return records, header

        return validated

    return swapped(produce, "_validated", wrong)


def _few_not_walked() -> AbstractContextManager[None]:
    """Accept batches without validation in the event loop."""
    return swapped(produce, "validated", lambda right: lambda batch, header, *rest: (batch, header))


def _short_not_walked() -> AbstractContextManager[None]:
    """Accept short compressed batches without validation in the event loop."""

    def wrong(right: Any) -> Any:
        def header(self: Any, batch: Any, config: Any, now_ms: int) -> Any:
            try:
                return produced_batch(batch, self._version)
            except KafkaError:
                return None

        return header

    return swapped(batch_validation.ShortBatches, "_header", wrong)


def _max_timestamp_believed() -> AbstractContextManager[None]:
    return swapped(batch_validation, "set_max_timestamp", lambda right: lambda *arguments: None)


def _control_batches_taken() -> AbstractContextManager[None]:
    from wire.records import batches

    return swapped(batches, "_NOT_FOR_PRODUCERS", lambda right: 0)


VALIDATION_MUTANTS: Final = tuple(
    Mutant(name, about, "hostile", found_as, apply)
    for name, about, found_as, apply in (
        (
            "record-count-not-checked",
            "a batch may have fewer or more records than the count in its header",
            ("L6", "L4"),
            _count_not_checked,
        ),
        (
            "offset-deltas-not-checked",
            "offset deltas of a produced batch need only ascend",
            ("L6", "L4"),
            _deltas_not_checked,
        ),
        (
            "compressed-not-walked",
            "the records of a compressed batch are not validated",
            ("L6", "L4"),
            _compressed_not_walked,
        ),
        (
            "many-records-not-walked",
            "batches are not validated in worker threads",
            ("L6", "L4"),
            _many_not_walked,
        ),
        (
            "few-records-not-walked",
            "batches are not validated in the event loop",
            ("L6", "L4"),
            _few_not_walked,
        ),
        (
            "short-compressed-not-walked",
            "short compressed batches are not validated in the event loop",
            ("L6", "L4"),
            _short_not_walked,
        ),
        (
            "max-timestamp-believed",
            "the largest timestamp of a header is not corrected",
            ("L4", "L5"),
            _max_timestamp_believed,
        ),
        (
            "control-batches-taken",
            "a client may write control batches",
            ("L6", "L4"),
            _control_batches_taken,
        ),
    )
)
