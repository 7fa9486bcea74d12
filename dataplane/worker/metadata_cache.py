"""Cache of encoded topic rows for Metadata responses.

A row depends on the topic's image, which the metadata log replaces on each change of the topic, on
the registered and fenced workers, and on local knowledge of this worker: its lost replicas, and
leaders whose process seems to have ended. Clients ask for all topics every few minutes, and all at
once when a worker stops. Encoding 10,000 partitions takes 50 ms; a cached row takes almost none.

Missing rows are encoded in slices, between which other tasks run. Apart from that, plain state.
"""

from collections import Counter
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

import trio

from metaquorum.dataplane.instruments.error_counts import EncodedRow
from metaquorum.metadata.image import MetadataImage, PartitionImage, TopicImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.codec import item_encoder

_NO_ERROR: Final = ErrorCode.NONE  # looking up a member of an enum by name is slow
_NO_LEADER: Final = -1
# Until there are ACLs: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS,
# ALTER_CONFIGS (KIP-430).
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
# Other tasks run after each slice; a partition takes some 5 µs.
PARTITIONS_PER_SLICE: Final = 500
# The same for topics; a cached topic takes some 2 µs.
TOPICS_PER_SLICE: Final = 500
# Above this size the cache is cleared; a partition of three replicas takes some 45 bytes.
MAX_KEPT_BYTES: Final = 16 << 20


class TopicView(NamedTuple):
    """Inputs of a topic's row at one moment."""

    image: MetadataImage
    topic: TopicImage
    worker_id: int
    lost: Set[int]  # indexes of this worker's offline replicas
    suspects: frozenset[int]  # worker ids of leaders whose process seems to have ended


class ResponseFormat(NamedTuple):
    """Version and options that determine the encoding of a row."""

    version: int
    with_operations: bool


class _Row(NamedTuple):
    topic: TopicImage
    lost: Set[int]
    suspects: frozenset[int]
    data: bytes


class MetadataCache:
    """Encoded topic rows of one worker."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._rows: dict[tuple[ResponseFormat, str], _Row] = {}
        self._workers: object = None  # `workers` of the image that the rows were encoded from
        self._kept_bytes = 0

    def kept(self, view: TopicView, form: ResponseFormat) -> bytes | None:
        """Return the cached row if it is still valid, otherwise None."""
        row = self._rows.get((form, view.topic.name))
        if (
            row is None
            or row.topic is not view.topic
            or self._workers is not view.image.workers
            or row.lost != view.lost
            or row.suspects != view.suspects
        ):
            return None
        return row.data

    def row(self, view: TopicView, form: ResponseFormat) -> bytes:
        """Return the row of a topic; encode and cache it if necessary."""
        data = self.kept(view, form)
        if data is None:
            partitions = describe(view)
            data = _encoded(view.topic, partitions, _errors(partitions), form)
            self._keep(view, form, data)
        return data

    async def make(self, view: TopicView, form: ResponseFormat) -> bytes:
        """Return the row like `row`, but let other tasks run while a large topic is encoded."""
        count = len(view.topic.partitions)
        if count <= PARTITIONS_PER_SLICE or self.kept(view, form) is not None:
            return self.row(view, form)
        encode = item_encoder(MetadataResponse, MetadataResponsePartition, form.version)
        partitions: list[bytes] = []
        errors: Counter[int] = Counter()
        for first in range(0, count, PARTITIONS_PER_SLICE):
            described = describe(view, first, first + PARTITIONS_PER_SLICE)
            errors += _errors(described)
            partitions += map(encode, described)
            await trio.lowlevel.checkpoint()
        data = _encoded(view.topic, partitions, errors, form)
        self._keep(view, form, data)
        return data

    def _keep(self, view: TopicView, form: ResponseFormat, data: bytes) -> None:
        if self._workers is not view.image.workers or self._kept_bytes > self._max_kept_bytes:
            self._rows.clear()
            self._workers, self._kept_bytes = view.image.workers, 0
        key = form, view.topic.name
        before = self._rows.get(key)
        self._kept_bytes += len(data) - (0 if before is None else len(before.data))
        self._rows[key] = _Row(view.topic, frozenset(view.lost), view.suspects, data)


def _errors(partitions: Iterable[MetadataResponsePartition]) -> Counter[int]:
    return Counter(int(each.error_code) for each in partitions if each.error_code)


def _encoded(
    topic: TopicImage,
    partitions: list[MetadataResponsePartition] | list[bytes],
    errors: Counter[int],
    form: ResponseFormat,
) -> bytes:
    row = MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=partitions,  # type: ignore[arg-type]  # partitions may be encoded already
    )
    if form.with_operations:
        row.topic_authorized_operations = TOPIC_OPERATIONS
    data = item_encoder(MetadataResponse, MetadataResponseTopic, form.version)(row)
    return EncodedRow.of(data, errors)


def describe(
    view: TopicView, first: int = 0, end: int | None = None
) -> list[MetadataResponsePartition]:
    """Return the partitions from `first` up to `end`; lost replicas of this worker are offline.

    A partition whose leader has just closed its connections is described without a leader: the
    client then retries soon instead of trying to connect to that worker.
    """
    live = frozenset(id for id, worker in view.image.workers.items() if not worker.fenced)
    unled, lost = live & view.suspects, view.lost
    return [
        _partition(index, each, view.worker_id if index in lost else None, live, unled)
        for index, each in enumerate(view.topic.partitions[first:end], first)
    ]


def _partition(
    index: int, partition: PartitionImage, lost: int | None, live: Set[int], unled: Set[int]
) -> MetadataResponsePartition:
    leader, replicas = partition.leader, partition.replicas
    led = leader in live and leader != lost and leader not in unled
    return MetadataResponsePartition(
        error_code=_NO_ERROR if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader if led else _NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[
            replica
            for replica in replicas
            if replica not in live or replica == lost or replica in partition.offline
        ],
    )
