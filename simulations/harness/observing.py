"""Observers in the shipped code, and small sizes for it; its behaviour does not change.

Observers: a callback gets every batch of metadata records that takes effect in a node, or every
segment that a log is about to delete. Small sizes: a journal segment or a snapshot interval of
16 MiB would take days to fill.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import metaquorum.dataplane.node
from metaquorum.dataplane.log.dirs import log_dir
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.segments.names import DELETED, LOG
from metaquorum.dataplane.replication import log_dir_mover
from metaquorum.metadata.batch import Batch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.quorum.rpc.feed import RecentBatches
from metaquorum.quorum.storage.journal import Journal
from metaquorum.simulations.kernel.storage import Storage

# Bytes of a step of a copy to another log directory, and of its last step: the logs are small.
COPIED_BYTES: Final = (1000, 1500)

Seen = Callable[[Batch], None]


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Call `seen` for every batch of metadata records that takes effect while the block runs."""

    class WatchedLoader(MetadataLoader):
        async def apply(self, term: int, batch: Batch) -> bool:
            took_effect = await super().apply(term, batch)
            if took_effect:
                seen(batch)
            return took_effect

    module: Any = metaquorum.dataplane.node
    module.MetadataLoader = WatchedLoader
    try:
        yield
    finally:
        module.MetadataLoader = MetadataLoader


@contextmanager
def watched_retirement(
    advanced: Callable[[PartitionLog], None], seen: Callable[[Storage, str], None]
) -> Iterator[None]:
    """Call `advanced` for every log start offset that has moved, and `seen` for every segment.

    A segment is seen when it is about to be renamed as deleted, which may be later.
    """
    right, advance = Storage.rename, PartitionLog.advance_log_start

    def advance_log_start(self: PartitionLog, offset: int) -> bool:
        has_moved = advance(self, offset)
        if has_moved:
            advanced(self)
        return has_moved

    def rename(self: Storage, source: str, target: str) -> None:
        if target == source + DELETED and source.endswith(LOG):
            seen(self, source)
        right(self, source, target)

    storage: Any = Storage
    log: Any = PartitionLog
    storage.rename, log.advance_log_start = rename, advance_log_start
    try:
        yield
    finally:
        storage.rename, log.advance_log_start = right, advance


@contextmanager
def few_recent_batches(most: int) -> Iterator[None]:
    """Limit the batches that controllers keep for observers; a slow observer needs a snapshot."""
    recent: Any = RecentBatches.__init__
    before = recent.__defaults__
    recent.__defaults__ = before[0], most
    try:
        yield
    finally:
        recent.__defaults__ = before


@contextmanager
def small_sizes(draw: Random, *, many_logs: int | None = None) -> Iterator[None]:
    """Draw small sizes. `many_logs`: number of logs from which `sync_all` is used, if not drawn."""
    journal: Any = Journal.__init__
    voter: Any = RaftVoter.__init__
    logs: Any = log_dir
    mover: Any = log_dir_mover
    copied = mover.STEP_BYTES, mover.SWAP_BYTES
    before = journal.__defaults__, dict(voter.__kwdefaults__)
    shipped = logs.MANY_LOGS
    drawn = draw.choice([1, shipped])
    logs.MANY_LOGS = drawn if many_logs is None else many_logs
    journal.__defaults__ = (draw.choice([300, 2000, 1 << 20]),)
    voter.__kwdefaults__["snapshot_interval_bytes"] = draw.choice([500, 3000, 1 << 20])
    mover.STEP_BYTES, mover.SWAP_BYTES = COPIED_BYTES
    try:
        yield
    finally:
        mover.STEP_BYTES, mover.SWAP_BYTES = copied
        journal.__defaults__, voter.__kwdefaults__ = before
        logs.MANY_LOGS = shipped
