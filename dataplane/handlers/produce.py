"""Produce: validate record batches, assign offsets and append the batches unchanged.

Almost every request is answered within the time slice that read it. The others become a coroutine
and keep their order on their connection and partition: a batch that is too large to write in place
or slow to validate, a flush that the topic requires before the response, a partition with such an
append in progress. Both ways validate batches by the same rules.
"""

from collections.abc import Collection, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from metaquorum.dataplane.handlers.produce_outcome import (
    Answer,
    Answers,
    AnswersProduce,
    Commit,
    DelayedProduce,
    DelaysProduce,
    Outcome,
    Pending,
    Refusal,
    RejectsAfterCheck,
    Uncommitted,
    failed,
    is_doubtful,
    refused,
    reject_after_check,
    response_of,
    success,
    topic_response,
    unchanged,
)
from metaquorum.dataplane.handlers.produce_transactions import (
    FIRST_THAT_ADDS as _ADDS_SINCE,
)
from metaquorum.dataplane.handlers.produce_transactions import (
    FIRST_WITH_TOPIC_ID as _TOPIC_IDS_SINCE,
)
from metaquorum.dataplane.handlers.produce_transactions import (
    ProduceTransaction,
    VerifiesTransactions,
    VerifiesWithoutWait,
    confirmed_here,
    is_confirmed,
    look_for_transaction,
    transaction_of,
    verify,
    verify_now,
)
from metaquorum.dataplane.log.partition_log import AppendResult
from metaquorum.dataplane.log.segments.config import NEVER
from metaquorum.dataplane.log.segments.producers import ProducerStateTable
from metaquorum.dataplane.log.segments.verification import NOT_REQUIRED, Verification
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.replies import CloseConnectionError, DelayedReply
from metaquorum.dataplane.partition.batch_validation import (
    COMMON_BYTES,
    SHORT_BYTES,
    Batch,
    ShortBatches,
    Validation,
    is_slow,
    plain_header,
    validated,
    validation,
)
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.partition.rejected_batches import (
    Place,
    RejectedBatches,
    TooManyRejectedError,
)
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, each_of, for_each_of, in_pieces
from metaquorum.dataplane.worker.capabilities import (
    HasClock,
    HasImage,
    HasPartitions,
    HasQuotas,
    HasSlicer,
    OpensBatches,
    ReadsMetadata,
)
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.internal_topics import check_writable
from metaquorum.runtime import Clock, Disk, StorageError
from metaquorum.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import Buffer
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import RequestHeader
from metaquorum.wire.protocol.produce_one import Appended
from metaquorum.wire.records.batches import (
    ATTRIBUTES_LOW_AT,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    produced_batch,
)

# Pieces (a quarter of a megabyte, a zstd frame of up to one) that a worker thread validates before
# other requests run.
PIECES_PER_SLICE: Final = 8
_NO_ACKS: Final = 0
_ALL_ACKS: Final = -1


# Partition, batch, verification of its transaction, and its header if it was validated before.
_Row: TypeAlias = tuple[Partition, memoryview, Verification | None, BatchHeader | None]


class AppendLimit(Protocol):
    @property
    def inline_append_bytes(self) -> int:
        """Size in bytes above which batches are appended in a worker thread."""

    @property
    def disk(self) -> Disk: ...


class RawPartitionLookup(Protocol):
    def of_raw(self, topic: bytes, *, by_id: bool) -> Mapping[int, Partition] | None: ...


class ProducesFast(
    AnswersProduce,
    DelaysProduce,
    AppendLimit,
    VerifiesWithoutWait,
    HasClock,
    Protocol,
):
    """Capability to append to partitions in place and report the outcome, without a thread."""

    @property
    def replica_manager(self) -> RawPartitionLookup: ...


class ValidatesSlowly(OpensBatches, HasClock, HasQuotas, Protocol):
    """Capability to validate batches in a worker thread, and charge its time to the client."""


class AppendsSlowly(ValidatesSlowly, RejectsAfterCheck, AppendLimit, Protocol):
    """Capability to append in a worker thread, and report the outcome."""


class Appends(AppendsSlowly, HasPartitions, Protocol):
    """Capability to append to partitions, in place or in a worker thread."""


class Produces(Appends, VerifiesTransactions, HasImage, HasSlicer, Protocol):
    """All that Produce may use: it appends to any number of partitions."""


def handle_produce_fast(
    worker: ProducesFast, frame: memoryview, body: int, header: RequestHeader, client: Client
) -> bytes | DelayedReply | None:
    """Append a request for one topic in place, as for most requests, and return its response.

    The version must be a served one. Return None, without an append, for requests that
    `handle_produce` must handle: several topics, acks=0, unknown partitions, internal topics, an
    append that has to wait, or the first batch of a transaction in a partition, unless its
    coordinator is in this worker and confirms it.
    """
    if client.rejected is not None:
        client.rejected = client.rejected.next_request()
    version = header.api_version
    one = request_form.decode_one(frame, body, version)
    if one is None:
        return None
    acks, timeout_ms, topic, asked, transactional_id = one
    hosted = worker.replica_manager.of_raw(topic, by_id=version >= _TOPIC_IDS_SINCE)
    if hosted is None or not acks or not -1 <= acks <= 1:
        return None
    now_ms, inline_bytes = worker.clock.now_ms(), worker.inline_append_bytes
    disk = worker.disk
    todo: list[_Row] = []
    opens = False  # whether a batch is compressed
    producer: tuple[int, int] | None = None  # the transaction's producer id and epoch
    confirmed: Collection[tuple[str, int]] | None = None  # by the transaction's coordinator
    for index, records in asked:
        partition = hosted.get(index)
        if partition is None or partition.is_internal:
            return None
        config, size_bytes = partition.config, len(records)
        # Nearly all batches: not compressed, not transactional, too short to be slow.
        is_simple = (
            HEADER_BYTES <= size_bytes < SHORT_BYTES
            and not records[ATTRIBUTES_LOW_AT]
            and not config.codec
        )
        if (
            config.log.flush_messages != NEVER
            or size_bytes > inline_bytes
            or size_bytes > disk.inline_write_bytes
            or partition.appending.locked()
        ):
            return None
        opens = opens or (not is_simple and is_slow(config, records))
        verified = None
        if not is_simple and (transaction := transaction_of(records)) is not None:
            producer_id, epoch, _ = transaction
            if transactional_id is None or producer not in (None, (producer_id, epoch)):
                return None
            producer, adds = (producer_id, epoch), version >= _ADDS_SINCE
            if not partition.log.producers.is_verified(producer_id, epoch, has_own_epoch=adds):
                if adds:
                    return None
                if confirmed is None:
                    confirmed = confirmed_here(worker, transactional_id, producer_id, epoch)
                if not is_confirmed(partition, confirmed, producer_id, epoch):
                    return None
                verified = NOT_REQUIRED
        todo.append((partition, records, verified, None))
    if opens and not _open(todo, version, now_ms):
        return None
    appended: list[Appended] = []
    doubts: list[Refusal] = []
    uncommitted: list[Uncommitted] = []
    outcome: Outcome | None = None  # created only if needed
    for partition, records, verified, opened in todo:
        try:
            result = _append_now(
                worker, partition, records, version, acks, now_ms, client, verified, opened
            )
        except (KafkaError, StorageError) as error:
            reported = _reject(client, _place(partition, version), records, error)
            outcome = outcome or Outcome(worker, client, header, len(frame), topic, appended)
            if is_doubtful(partition, reported):
                doubts.append((len(appended), partition, partition.leader_epoch, reported))
            else:  # at once: a failed log directory must not take more batches of this request
                outcome.fail(len(appended), partition, reported)
            appended.append((partition.index, -1, -1, -1))
            continue
        first_offset, last_offset, append_time_ms, _ = result
        if acks == _ALL_ACKS and last_offset >= partition.high_watermark:
            end_offset = last_offset + 1
            uncommitted.append((len(appended), partition, partition.leader_epoch, end_offset))
        appended.append(
            (partition.index, first_offset, append_time_ms, partition.log.log_start_offset)
        )
    if outcome is None and not uncommitted:
        throttle_ms = 0
        if worker.quotas.is_on:
            throttle_ms = worker.quotas.answering(client, header.client_id, len(frame))
        return request_form.encode_one(version, header.correlation_id, topic, appended, throttle_ms)
    outcome = outcome or Outcome(worker, client, header, len(frame), topic, appended)
    if uncommitted or doubts:
        commits = DelayedProduce(worker, uncommitted, doubts, outcome, timeout_ms)
        return DelayedReply(commits, unchanged)
    return outcome.answer()


def _open(todo: list[_Row], version: int, now_ms: int) -> bool:
    """Validate the compressed batches of `todo`; return whether all could be validated in place.

    All rows were looked at before, because batches opened here may be opened again in a thread.
    """
    short = ShortBatches(version)
    for number, (partition, records, verified, _) in enumerate(todo):
        if is_slow(partition.config, records):
            opened = short.header(records, partition.config, now_ms)
            if opened is None:
                return False
            todo[number] = partition, records, verified, opened
    return True


async def handle_produce(
    worker: Produces, request: Request, message: ProduceRequest
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    acks = message.acks
    if not -1 <= acks <= 1:
        code, reason = ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}"
        return await _refuse_all(worker, message, code, reason)
    try:
        transaction = await look_for_transaction(worker, message, request.version)
    except KafkaError as error:
        return await _refuse_all(worker, message, error.code, error.message)
    if transaction is not None and transaction.places:
        return _verify_and_append(worker, request, message, transaction)
    return await _append_all(worker, request, message, transaction)


async def _verify_and_append(
    worker: Produces, request: Request, message: ProduceRequest, transaction: ProduceTransaction
) -> ProduceResponse | None:
    """Append once the transaction's coordinator has answered.

    Later requests of the connection wait meanwhile, so the batches keep their order.
    """
    assert message.transactional_id is not None
    transaction.begin()
    try:
        if not verify_now(worker, transaction, message.transactional_id):
            await verify(worker, transaction, message.transactional_id, request.client)
        answer = await _append_all(worker, request, message, transaction)
        return answer if answer is None or isinstance(answer, ProduceResponse) else await answer
    finally:
        transaction.cancel()


async def _append_all(
    worker: Produces,
    request: Request,
    message: ProduceRequest,
    transaction: ProduceTransaction | None,
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    acks = message.acks
    must_wait = False
    # A request for one topic comes here if a batch is not short, or waits: others wait with it.
    short = ShortBatches(request.version) if len(message.topic_data) > 1 else None
    left: set[Partition] = set()
    commit = Commit(worker, message.timeout_ms) if acks == _ALL_ACKS else None

    def append(topic: TopicProduceData, data: PartitionProduceData) -> Answer | Pending:
        nonlocal must_wait
        answer = _append(worker, request, topic, data, acks, commit, transaction, short, left)
        must_wait = must_wait or type(answer) is not PartitionProduceResponse
        return answer

    answers: Answers = await each_of(message.topic_data, _partitions_of, append)
    if must_wait:
        return _await_all(worker, request.client, acks, answers)
    return await _respond(worker, request.client, acks, answers)


def _partitions_of(topic: TopicProduceData) -> list[PartitionProduceData]:
    return topic.partition_data


async def _await_all(
    worker: ReadsMetadata, client: Client, acks: int, answers: Answers
) -> ProduceResponse | None:
    for _, of_topic in answers:
        for index, answer in enumerate(of_topic):
            if not isinstance(answer, PartitionProduceResponse):
                of_topic[index] = await answer()
    return await _respond(worker, client, acks, answers)


async def _respond(
    worker: ReadsMetadata, client: Client, acks: int, answers: Answers
) -> ProduceResponse | None:
    def check(_: object, answer: Answer | Pending) -> None:
        assert isinstance(answer, PartitionProduceResponse)
        if answer.error_code:  # the only way to report an error with acks=0
            raise CloseConnectionError(
                f"produce with acks=0 failed: {answer.error_message or answer.error_code}"
            )

    try:
        if acks != _NO_ACKS:
            return await response_of(worker, client, answers)
        await for_each_of(answers, lambda each: each[1], check)
    finally:
        if len(answers) > PIECE_ROWS:
            worker.slicer.discard(answers)
    return None


async def _refuse_all(
    worker: HasSlicer, message: ProduceRequest, code: ErrorCode, reason: str
) -> ProduceResponse | None:
    if message.acks == _NO_ACKS:
        raise CloseConnectionError(f"produce with acks=0 failed: {reason}")
    answers = await each_of(
        message.topic_data, _partitions_of, lambda _, data: refused(data.index, code, reason)
    )
    responses = await in_pieces(answers, topic_response)
    worker.slicer.discard(answers)
    return ProduceResponse(responses=responses)


def _append(
    worker: Appends,
    request: Request,
    topic: TopicProduceData,
    data: PartitionProduceData,
    acks: int,
    commit: Commit | None,
    transaction: ProduceTransaction | None,
    short: ShortBatches | None,
    left: set[Partition],
) -> Answer | Pending:
    """Append the batch of one row, or return the function that does so after those before it.

    `left` has the partitions with such a batch in this request: a later one must not overtake it.
    """
    version, client = request.version, request.client
    partition: Partition | None = None
    try:
        if version >= _TOPIC_IDS_SINCE:
            partition = worker.replica_manager.by_id(topic.topic_id, data.index)
            check_writable(partition.topic)
        else:
            check_writable(topic.name)
            partition = worker.replica_manager.by_name(topic.name, data.index)
        records = data.records
        if records is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "produce without a record batch")
        assert isinstance(records, memoryview)
        verified = None if transaction is None else transaction.verification_of(partition)
        now_ms = worker.clock.now_ms()
        opened = None
        must_leave = (
            partition.config.log.flush_messages == 1
            or _is_large(worker, records)
            or partition.appending.locked()
            or partition in left
        )
        if not must_leave and is_slow(partition.config, records):
            if short is not None:
                opened = short.header(records, partition.config, now_ms)
            must_leave = opened is None
        if must_leave:
            left.add(partition)
            partition.check_append(acks)
            header = produced_batch(records, version)
            _check_size(partition, header)
            return partial(
                _append_slowly, worker, request, partition, records, header, commit, verified
            )
        leader_epoch = partition.leader_epoch
        result = _append_now(
            worker, partition, records, version, acks, now_ms, client, verified, opened
        )
        must_flush = partition.log.config.flush_messages <= partition.log.unflushed_records
        if must_flush or (commit is not None and partition.leader_state is not None):
            return partial(_settle, worker, partition, result, leader_epoch, commit)
    except (KafkaError, StorageError) as error:
        topic_key = topic.topic_id if version >= _TOPIC_IDS_SINCE else topic.name
        reported = _reject(client, (topic_key, data.index), data.records, error)
        try:
            if partition is not None and is_doubtful(partition, reported):
                epoch = partition.leader_epoch
                return partial(reject_after_check, worker, partition, epoch, reported)
            return failed(worker, partition, data.index, reported)
        finally:
            del reported  # breaks the reference cycle of this frame, with its row, and the error
    return success(partition, result)


def _place(partition: Partition, version: int) -> Place:
    """Return the partition's key in a request of that version: by topic id, or by name."""
    by_id = version >= _TOPIC_IDS_SINCE
    return (partition.topic_id if by_id else partition.topic), partition.index


def _append_now(
    worker: HasQuotas,
    partition: Partition,
    records: memoryview,
    version: int,
    acks: int,
    now_ms: int,
    client: Client,
    verified: Verification | None = None,
    opened: BatchHeader | None = None,
) -> AppendResult:
    """Validate and append a batch in place; `opened` is its header if it was validated before.

    Raises KafkaError if the batch is rejected, StorageError if the log directory fails.
    """
    partition.check_append(acks)
    header = opened or plain_header(records, partition.config, now_ms)
    is_plain = header is not None
    if header is None:
        header = produced_batch(records, version)
    if header.batch_bytes > partition.config.max_message_bytes:
        _check_size(partition, header)
    if client.rejected is not None:
        _check_turn(client, _place(partition, version), partition.log.producers, header)
    if not is_plain:
        _, header = validated(records, header, partition.config, partition, now_ms)
    producers = partition.log.producers
    if header.attributes & TRANSACTIONAL:
        producers.check_verified(header, verified)
    if header.producer_id >= 0 and header.producer_id not in producers.entries:
        worker.quotas.producers.admit(client, header.producer_id)
    result = partition.log.append(records, header, partition.leader_epoch, now_ms)
    if not result.is_duplicate:
        partition.appended(header.batch_bytes)
    return result


def _is_large(worker: AppendLimit, batch: Buffer) -> bool:
    """Return whether a worker thread must write the batch: for its size, or because the disk does
    not keep up with the writers."""
    return len(batch) > min(worker.inline_append_bytes, worker.disk.inline_write_bytes)


def _check_size(partition: Partition, header: BatchHeader) -> None:
    """Raise KafkaError if the batch is too large for the topic."""
    if header.batch_bytes > partition.config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"record batch of {header.batch_bytes} bytes for {partition} exceeds"
            f" max.message.bytes, {partition.config.max_message_bytes}",
        )


async def _validated(
    worker: ValidatesSlowly,
    client: Client,
    partition: Partition,
    records: memoryview,
    header: BatchHeader,
) -> tuple[Batch, BatchHeader]:
    """Validate a batch in slices in a worker thread; charge its CPU time to the client.

    Raises KafkaError if the batch is invalid.
    """
    now_ms = worker.clock.now_ms()
    slices = validation(records, header, partition.config, partition, now_ms)
    size_bytes = 0
    async with AsyncExitStack() as stack:
        stack.callback(slices.close)
        while True:
            run_slice = partial(_run_slice, worker.clock, slices)
            done_bytes, used_s, result = await worker.disk.run(run_slice)
            worker.quotas.meter.add(client, used_s)
            if isinstance(result, KafkaError):
                try:
                    raise result
                finally:
                    del result  # breaks the reference cycle of this frame and the error
            if result is not None:
                return result
            if size_bytes <= COMMON_BYTES < size_bytes + done_bytes:
                # It may be a decompression bomb, or have a record of a hundred megabytes.
                await stack.enter_async_context(worker.opening_batch)
            size_bytes += done_bytes


def _run_slice(
    clock: Clock, slices: Validation
) -> tuple[int, float, tuple[Batch, BatchHeader] | KafkaError | None]:
    """Run one slice of a validation, in a worker thread.

    Return the bytes of records validated, the CPU seconds used, and the result, or None before the
    last slice. A KafkaError is returned: an exception that leaves a thread would keep all its stack
    frames alive.
    """
    began_s = clock.cpu_s()
    done_bytes = 0
    result: tuple[Batch, BatchHeader] | KafkaError | None = None
    try:
        for _ in range(PIECES_PER_SLICE):
            done_bytes += next(slices)
            if done_bytes > COMMON_BYTES:
                break  # the caller first waits for `opening_batch`
    except StopIteration as stop:
        result = stop.value
    except KafkaError as error:
        error.__traceback__ = error.__context__ = None
        result = error
    return done_bytes, clock.cpu_s() - began_s, result


async def _append_slowly(
    worker: AppendsSlowly,
    request: Request,
    partition: Partition,
    records: memoryview,
    header: BatchHeader,
    commit: Commit | None,
    verified: Verification | None,
) -> Answer:
    """Validate a batch, or write it, or both, in a worker thread, in the order of the partition."""
    try:
        async with partition.appending:
            plog = partition.log  # a move to another directory replaces it
            batch: Batch = records
            if is_slow(partition.config, records):
                batch, header = await _validated(worker, request.client, partition, records, header)
            else:
                now_ms = worker.clock.now_ms()
                batch, header = validated(records, header, partition.config, partition, now_ms)
            partition.check_append(_NO_ACKS)  # the leader may have changed meanwhile
            _check_turn(request.client, _place(partition, request.version), plog.producers, header)
            if header.attributes & TRANSACTIONAL:
                plog.producers.check_verified(header, verified)
            if header.producer_id >= 0 and header.producer_id not in plog.producers.entries:
                worker.quotas.producers.admit(request.client, header.producer_id)
            leader_epoch, now_ms = partition.leader_epoch, worker.clock.now_ms()
            # A write may have to wait for a sync of the same file.
            if partition.config.log.flush_messages != NEVER or _is_large(worker, batch):
                result = await plog.append_beside(worker.disk, batch, header, leader_epoch, now_ms)
            else:
                result = plog.append(batch, header, leader_epoch, now_ms)
            if not result.is_duplicate:
                partition.appended(header.batch_bytes)
    except (KafkaError, StorageError) as error:
        reported = _reject(request.client, _place(partition, request.version), records, error)
        if is_doubtful(partition, reported):
            return await reject_after_check(worker, partition, partition.leader_epoch, reported)
        return failed(worker, partition, partition.index, reported)
    return await _settle(worker, partition, result, leader_epoch, commit)


async def _settle(
    worker: AppendsSlowly,
    partition: Partition,
    result: AppendResult,
    leader_epoch: int,
    commit: Commit | None,
) -> Answer:
    """Flush if the topic requires it, wait for in-sync replicas if acks=all, and answer."""
    plog = partition.log
    try:
        if plog.config.flush_messages <= plog.unflushed_records:
            await partition.flush(worker.disk)
        if commit is not None:
            await commit.wait(partition, result, leader_epoch)
    except (KafkaError, StorageError) as error:
        return failed(worker, partition, partition.index, error)
    return success(partition, result)


def _reject(
    client: Client, place: Place, records: Buffer | None, error: KafkaError | StorageError
) -> KafkaError | StorageError:
    """Return the error to report for a rejected batch; later batches must not overtake it."""
    if client.rejected is None:
        client.rejected = RejectedBatches()
    return client.rejected.reject(place, records, error)


def _check_turn(
    client: Client, place: Place, producers: ProducerStateTable, header: BatchHeader
) -> None:
    """Raise KafkaError if an earlier batch was rejected and the log does not know the producer.

    Closes the connection (CloseConnectionError) if too many rejected batches are remembered.
    """
    if (
        client.rejected is not None
        and header.producer_id >= 0
        and header.producer_id not in producers.entries
    ):
        try:
            client.rejected.check(place, header)
        except TooManyRejectedError as error:
            raise CloseConnectionError(str(error)) from None
