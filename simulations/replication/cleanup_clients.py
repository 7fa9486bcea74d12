"""Clients of topics with compaction, retention or recompression: keys, tombstones, many codecs."""

from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.harness.client import ClientConnection
from metaquorum.simulations.replication.cleanup_checkers import LastOfEachKeyIsRead
from metaquorum.simulations.replication.replica_checkers import MIN_ISR, AcknowledgedStays
from metaquorum.simulations.replication.replica_clients import (
    Batch,
    ReplicaAdministrator,
    ReplicaProducer,
)
from metaquorum.simulations.replication.replicas import TOMBSTONES_STAY_MS, Content, Identity, Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.records.compression import Codec
from metaquorum.wire.records.records import Record

MOST_TOPICS: Final = 3
_ZSTD_SINCE: Final = 7  # Produce version (KIP-110)
# Workers' clocks are up to five minutes behind or ahead of the producers' clocks.
RETENTION_MS: Final = ("-1", "1000", "200000", "400000")
RETENTION_BYTES: Final = ("-1", "2000", "6000")
COMPRESSION_TYPES: Final = ("producer", "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
POLICIES: Final = ("delete", "compact", "compact", "compact,delete")


class CleanupAdministrator(ReplicaAdministrator):
    """Administrator that creates few topics, so that each log gets many segments.

    Some topics are compacted; most delete records by time or size.
    """

    async def _create(self, connection: ClientConnection) -> None:
        lasting = self.cluster_state.topic_outcomes.lasting
        if len(lasting) < MOST_TOPICS:
            await super()._create(connection)

    async def _create_as(self, connection: ClientConnection, name: str) -> None:
        draw = self._draw
        replicas = draw.choice([2, 3, 3])
        least = draw.choice([1, 2])
        policy = draw.choice(POLICIES)
        overrides = {
            MIN_ISR: str(least),
            "internal.segment.bytes": draw.choice(["1000", "2500"]),
            "index.interval.bytes": draw.choice(["1", "300"]),
            "cleanup.policy": policy,
            "compression.type": draw.choice(COMPRESSION_TYPES),
            "message.timestamp.type": draw.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            "file.delete.delay.ms": draw.choice(["0", "1000"]),
        }
        if "delete" in policy:
            overrides["retention.ms"] = draw.choice(RETENTION_MS)
            overrides["retention.bytes"] = draw.choice(RETENTION_BYTES)
        if "compact" in policy:
            overrides["min.cleanable.dirty.ratio"] = draw.choice(["0.01", "0.5"])
            overrides["delete.retention.ms"] = draw.choice(["100", str(2 * TOMBSTONES_STAY_MS)])
        if draw.random() < self.cluster_state.settings.flushed:
            overrides["flush.messages"] = "1"
        partitions = draw.choice([1, 1, 2])
        topic_id = await self._ask_creation(connection, name, partitions, replicas, overrides)
        if topic_id is not None:
            self._made_as(topic_id, partitions, least, overrides)


class CleanupProducer(ReplicaProducer):
    """Producer that repeats a few keys, draws a codec for each batch, and sends tombstones."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        # A separate random stream: keys do not change the times and sizes of batches.
        self._of_keys = cluster_state.world.stream(f"keys {name}")
        self._keys = self._of_keys.choice([1, 3, 10])
        self._tombstones = self._of_keys.choice([0.0, 0.1, 0.4])
        codecs = [codec for codec in Codec if codec is not Codec.ZSTD or self._takes_zstd]
        self._codecs = self._of_keys.sample(codecs, self._of_keys.randint(1, len(codecs)))

    @property
    def _takes_zstd(self) -> bool:
        return self._versions[ApiKey.PRODUCE] >= _ZSTD_SINCE

    def _next(self, runtime: Runtime, place: Place) -> Batch:
        batch = super()._next(runtime, place)
        draw = self._of_keys
        batch.contents = [
            Content(b"key %d" % draw.randrange(self._keys), value, draw.random() < self._tombstones)
            for value in batch.values
        ]
        self.cluster_state.checker(LastOfEachKeyIsRead).sent.setdefault(place, []).extend(
            batch.contents
        )
        return batch

    def _records(self, batch: Batch) -> list[Record]:
        return [
            Record(number, batch.timestamp_ms, content.key, None, (("text", content.text),))
            if content.is_tombstone
            else Record(number, batch.timestamp_ms, content.key, content.text, ())
            for number, content in enumerate(batch.contents)
        ]

    def _codec(self) -> Codec:
        return self._of_keys.choice(self._codecs)

    def _identities(self, batch: Batch, crc: int) -> list[Identity]:
        return [content.identity for content in batch.contents]

    def _acknowledged(self, place: Place, batch: Batch, crc: int, base_offset: int) -> None:
        super()._acknowledged(place, batch, crc, base_offset)
        known = self.cluster_state.checker(AcknowledgedStays).acked.get(place, {})
        last = self.cluster_state.checker(LastOfEachKeyIsRead).acknowledged.setdefault(place, {})
        for content in batch.contents:
            if (at := known.get(content.text)) is not None:
                last[at[0]] = content
