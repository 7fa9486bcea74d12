"""Topics as Metadata tells of them: encoded, and kept until something about them changes.

A topic's row is made of its image, which the metadata log replaces when anything in it changes, of
who is registered and fenced, and of what this worker alone knows: which of its replicas are lost,
and whose process seems to be gone. Clients ask for all topics every few minutes, and all at once
when a worker goes; 10,000 partitions take 50 ms to tell of, and to repeat what was told, none.

What is not kept yet is made in slices, with a turn for others between them. Plain state but for
that.
"""

from collections import Counter
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

import trio

from dataplane.instruments.error_counts import EncodedRow
from metaquorum.metadata.image import MetadataImage, PartitionImage, TopicImage
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.primitives.errors import ErrorCode
from wire.schema.codec import item_encoder

_NO_ERROR: Final = ErrorCode.NONE  # members of an enum are slow to look up by name
_NO_LEADER: Final = -1
# Until there are ACLs: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS,
# ALTER_CONFIGS (KIP-430).
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
# Others have their turn after so many, some 5 µs each.
PARTITIONS_PER_SLICE: Final = 500
# And after so many topics, kept or not, some 2 µs each if they are.
TOPICS_PER_SLICE: Final = 500
# All rows are forgotten when they exceed this: some 45 bytes for a partition of three replicas.
MAX_KEPT_BYTES: Final = 16 << 20


class TopicView(NamedTuple):
    """What a worker knows of a topic at one time, that its row is made of."""

    image: MetadataImage
    topic: TopicImage
    worker_id: int
    lost: Set[int]  # partitions that should be here, and cannot be used
    suspects: frozenset[int]  # leaders whose process seems to be gone


class ResponseFormat(NamedTuple):
    """How a client is told."""

    version: int
    with_operations: bool


class _Row(NamedTuple):
    topic: TopicImage
    lost: Set[int]
    suspects: frozenset[int]
    data: bytes


class MetadataCache:
    """The rows of one worker."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._rows: dict[tuple[ResponseFormat, str], _Row] = {}
        self._workers: object = None  # of the image by which they were made
        self._kept_bytes = 0

    def kept(self, view: TopicView, form: ResponseFormat) -> bytes | None:
        """The row as it was told before, if it would be the same now."""
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
        """The row, kept from now on."""
        data = self.kept(view, form)
        if data is None:
            partitions = describe(view)
            data = _encoded(view.topic, partitions, _errors(partitions), form)
            self._keep(view, form, data)
        return data

    async def make(self, view: TopicView, form: ResponseFormat) -> bytes:
        """As `row`, with turns for others if the topic is a large one."""
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
        partitions=partitions,  # type: ignore[arg-type]  # they may be encoded
    )
    if form.with_operations:
        row.topic_authorized_operations = TOPIC_OPERATIONS
    data = item_encoder(MetadataResponse, MetadataResponseTopic, form.version)(row)
    return EncodedRow.of(data, errors)


def describe(
    view: TopicView, first: int = 0, end: int | None = None
) -> list[MetadataResponsePartition]:
    """Those from `first` up to `end`; a replica here that cannot be used is known to be offline.

    A leader whose process has just closed its connections is none: a client that is told so asks
    again soon, and one that is sent there does not.
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
