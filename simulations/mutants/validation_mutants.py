"""Mutants of what a leader checks of batches, and of what protects the state of producers."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.handlers import produce
from metaquorum.dataplane.handlers.produce_transactions import ProduceTransaction
from metaquorum.dataplane.log.segments.producers import NO_OFFSET, ProducerStateTable
from metaquorum.dataplane.log.segments.verification import Verifications
from metaquorum.dataplane.partition import batch_validation
from metaquorum.dataplane.quotas import producer_admission
from metaquorum.dataplane.quotas.client_state import ClientShare
from metaquorum.dataplane.quotas.producer_admission import ProducerAdmission, UnknownProducerIdError
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.records.batches import CODEC_MASK, produced_batch
from metaquorum.wire.records.record_walk import RecordWalk


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
    from metaquorum.wire.records import batches

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


# New producers

# Limits of tables that the shipped code does not have.
MOST_PRODUCERS: Final = 6
MOST_VERIFICATIONS: Final = 5


def _producers_evicted() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def _add(self: Any, *values: Any) -> Any:
            if len(self.entries) >= MOST_PRODUCERS:
                idle = [e for e in self.entries.values() if e.transaction_first_offset == NO_OFFSET]
                for entry in sorted(idle, key=lambda one: one.last_seen_ms)[:1]:
                    del self.entries[entry.producer_id]
            return right(self, *values)

        return _add

    return swapped(ProducerStateTable, "_add", wrong)


def _one_share_for_all() -> AbstractContextManager[None]:
    return swapped(producer_admission, "share_of", lambda _: lambda client: ClientShare("", ""))


def _forged_appended() -> AbstractContextManager[None]:
    """Let partitions take any producer id, as Kafka does."""

    def wrong(right: Any) -> Any:
        def admit(self: Any, client: Any, producer_id: int) -> None:
            right(self, client, min(producer_id, self.next_producer_id - 1))

        return admit

    return swapped(ProducerAdmission, "admit", wrong)


def _new_ids_forged() -> AbstractContextManager[None]:
    """Refuse an id finally without looking at the metadata of now."""

    def wrong(right: Any) -> Any:
        def init(self: Any, *values: Any) -> None:
            right(self, *values)
            self.code = ErrorCode.INVALID_PRODUCER_ID_MAPPING

        return init

    return swapped(UnknownProducerIdError, "__init__", wrong)


def _verifications_kept() -> AbstractContextManager[None]:
    """Keep those of requests that are over, in a table with one limit for all producers."""

    def wrong(right: Any) -> Any:
        def begin(self: Any) -> None:
            right(self)
            for place, partition in self.places.items():
                if len(partition.log.producers.verifications.pending) > MOST_VERIFICATIONS:
                    self.errors[place] = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

        return begin

    return all_of(
        swapped(ProduceTransaction, "begin", wrong),
        swapped(Verifications, "cancel", lambda _: lambda self, *values: None),
    )


def _verifications_of_others_ended() -> AbstractContextManager[None]:
    """End all verifications of a producer with a request that has its id."""
    return swapped(
        Verifications, "cancel", lambda _: lambda self, producer_id, _: self.end(producer_id)
    )


PRODUCER_MUTANTS: Final = tuple(
    Mutant(name, about, "forged-producers", found_as, apply)
    for name, about, found_as, apply in (
        (
            "producers-evicted",
            "a partition forgets the longest idle producer when it has many",
            ("T1",),
            _producers_evicted,
        ),
        (
            "one-share-for-all",
            "all clients together may bring a number of new producers",
            ("liveness",),
            _one_share_for_all,
        ),
        (
            "forged-producers-appended",
            "a partition takes batches with producer ids that no worker has given out",
            ("T1",),
            _forged_appended,
        ),
        (
            "new-producers-forged",
            "a leader whose metadata are behind refuses new producer ids finally",
            ("T1",),
            _new_ids_forged,
        ),
        (
            "verifications-kept",
            "verifications that are over stay in a table with one limit for all producers",
            ("liveness",),
            _verifications_kept,
        ),
        (
            "verifications-of-others-ended",
            "a refused request ends the verifications of other requests with its producer id",
            ("Q3",),
            _verifications_of_others_ended,
        ),
    )
)
