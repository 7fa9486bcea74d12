"""Checkers of an upgrade: what old nodes read, when a level is raised, what needs the level."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgpack

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.records import (
    METADATA_VERSION,
    SCHEMAS,
    TRANSACTION_VERSION,
    FeatureLevelRecord,
    MetadataRecord,
    Schema,
    TopicRecord,
)
from metaquorum.quorum.controller.internal_topics import LEVELS, TRANSACTIONS_LEVEL
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.groups.node_versions import NodeVersions
from metaquorum.simulations.kernel.process import Process
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.wire.primitives.errors import ErrorCode


def level_of(image: MetadataImage) -> int:
    return image.features.get(METADATA_VERSION, 0)


class LevelsAreSupported(WatchingChecker):
    """The level is raised only when every node runs a version that supports it.

    Before, no internal topic is created, and requests to raise the level are refused.
    """

    invariant = "M7"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.versions = NodeVersions()

    @property
    def old_nodes(self) -> list[str]:
        """Nodes whose last process was of the old version."""
        machines = [each.supervisor.machine for each in self.cluster_state.members.values()]
        return [each.name for each in machines if self.versions.is_old(each.name, each.runs)]

    @property
    def features(self) -> Mapping[str, int]:
        """Levels of the newest metadata."""
        return self.cluster_history.image.features

    @property
    def level(self) -> int:
        """Level of the newest metadata; 0 before the cluster is founded."""
        return level_of(self.cluster_history.image)

    def metadata(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        level = level_of(image)
        if level < TRANSACTIONS_LEVEL:
            self.compare(not image.features.get(TRANSACTION_VERSION), "transactions at {}", level)
        early = [name for name, needed in LEVELS.items() if level < needed and image.topic(name)]
        self.compare(not early, "{} exists at level {}", early, level)
        transactions = image.features.get(TRANSACTION_VERSION, 0)
        if transactions > before.features.get(TRANSACTION_VERSION, 0):
            self.world.count("levels of transaction.version raised")
            is_old = self.versions.old_supports(TRANSACTION_VERSION, transactions)
            self.compare(
                (is_old or not self.old_nodes) and level >= TRANSACTIONS_LEVEL,
                "transaction.version is raised at level {} while {} run the old version",
                level,
                self.old_nodes,
            )
        if 0 < level_of(before) < level:
            self.world.count("levels raised")
            self.compare(
                not self.old_nodes,
                "the level is raised to {} while {} run the old version",
                level,
                self.old_nodes,
            )

    def answered(self, old_nodes: list[str], code: ErrorCode) -> None:
        """Check the answer to a request to raise the level; `old_nodes` when it came."""
        self.world.count(f"raise: {code.name}")
        self.compare(
            code is not ErrorCode.NONE or not old_nodes,
            "a request to raise the level succeeds while {} run the old version",
            old_nodes,
        )


class OldNodesReadOldRecords(WatchingChecker):
    """A process of the old version never applies a record that the new level permits.

    Nor does it receive an old record in a version that it cannot read.
    """

    invariant = "M7"

    @property
    def _versions(self) -> NodeVersions:
        return self.cluster_state.checker(LevelsAreSupported).versions

    def applied(self, process: Process, batch: Batch) -> None:
        for record in batch.records():
            self.compare(
                _level_needed(record) <= self._versions.old_level,
                "{} runs the old version, and applies {} at {}",
                process.name,
                record,
                batch.expected_offset,
            )
        for schema, version in _written(batch):
            self.compare(
                schema.levels[version] <= self._versions.old_level,
                "{} runs the old version, and reads version {} of {} at {}",
                process.name,
                version,
                schema.record.__name__,
                batch.expected_offset,
            )


class GroupsNeedTheirLevel(WatchingChecker):
    """At a level without groups, requests of groups are refused, and nothing is committed."""

    invariant = "G5"

    def answered(self, request: str, worker_id: int, codes: list[ErrorCode]) -> None:
        self.compare(
            set(codes) == {ErrorCode.UNSUPPORTED_VERSION},
            "worker {} runs at a level without groups, and answers {} with {}",
            worker_id,
            request,
            [code.name for code in codes],
        )

    def found(self, worker_id: int, coordinator_id: int, code: ErrorCode) -> None:
        """Check the answer to a FindCoordinator: none, or the worker itself."""
        self.compare(
            coordinator_id == worker_id or code is not ErrorCode.NONE,
            "worker {} runs at a level without groups, and names the coordinator {}",
            worker_id,
            coordinator_id,
        )

    def read(self, worker_id: int, offsets: list[int]) -> None:
        self.compare(
            all(offset < 0 for offset in offsets),
            "worker {} runs at a level without groups, and returns the offsets {}",
            worker_id,
            offsets,
        )


UPGRADE_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    LevelsAreSupported,
    OldNodesReadOldRecords,
    GroupsNeedTheirLevel,
)


def _written(batch: Batch) -> Iterator[tuple[Schema, int]]:
    """Yield the schema and the version of each record, as they are encoded."""
    schemas = {schema.id: schema for schema in SCHEMAS}
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(batch.body)
    for _ in range(batch.count):
        record_id, version, *_ = unpacker.unpack()
        yield schemas[record_id], version


def _level_needed(record: MetadataRecord) -> int:
    if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
        return record.level
    if isinstance(record, FeatureLevelRecord) and record.name == TRANSACTION_VERSION:
        return TRANSACTIONS_LEVEL if record.level else 0
    if isinstance(record, TopicRecord):
        return LEVELS.get(record.name, 0)
    return 0
