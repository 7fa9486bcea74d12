"""Several voters in one process, with virtual time, crashing disks and failing links.

A link between two voters carries whole messages in order, like the transport. A cut closes the
connection, so both ends notice; a stall is not noticed by either end. A killed voter loses no
written data; a power loss deletes the data that was not synced.

During the run and at its end the cluster checks that no term has two leaders, that committed
entries are equal on all voters and never change, that they were on the disks of a majority, that
images are equal, and that the reported outcome of every proposal was correct.
"""

import contextlib
import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import trio
import trio.testing
from trio._core import _run

from metaquorum.metadata.batch import Batch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import TopicRecord, encode_record
from metaquorum.metadata.replicated_log import (
    NotCommittedError,
    OutcomeUnknownError,
    Proposal,
    RaftFatalError,
)
from metaquorum.quorum.raft.peers import PeerProtocolError, PeerReceiver
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.quorum.storage.journal import Journal
from metaquorum.runtime.interfaces import File, StorageError
from tests.metaquorum.quorum.storage.crash_disk import Crash, CrashDisk

T = TypeVar("T")
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
DIRECTORY = "/data/metadata"


class SkewedClock:
    def __init__(self, offset: float, rate: float = 1.0) -> None:
        self._offset = offset
        self._rate = rate

    def now_ms(self) -> int:
        return round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return trio.current_time() * self._rate + self._offset

    async def sleep_until(self, deadline: float) -> None:
        await trio.sleep_until((deadline - self._offset) / self._rate)


class SlowDisk(CrashDisk):
    """Disk whose blocking calls take a random time."""

    random = Random(0)
    delay_s = 0.002
    refusing = 0.0  # share of the files and folders for which there is no descriptor

    def _refuse(self, path: str) -> None:
        if self.refusing and self.random.random() < self.refusing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def open(self, path: str, *, create: bool = False) -> File:
        self._refuse(path)
        return super().open(path, create=create)

    def create_private(self, path: str) -> File:
        self._refuse(path)
        return super().create_private(path)

    def sync_dir(self, path: str) -> None:
        self._refuse(path)
        super().sync_dir(path)

    async def run(self, function: Callable[[], T]) -> T:
        await trio.sleep(self.random.uniform(0, self.delay_s))
        result = function()
        await trio.sleep(self.random.uniform(0, self.delay_s))
        return result

    def after(self, random: Random | None) -> "SlowDisk":
        """Return the disk after a kill (None), or after a power loss."""
        left, disk = self.survivor(random), SlowDisk()
        disk.random, disk.delay_s = self.random, self.delay_s
        disk.files, disk.synced_files = left.files, left.synced_files
        disk.pending_names, disk.folders = left.pending_names, left.folders
        return disk


class SlowLoader(MetadataLoader):
    delay_s = 0.0

    async def apply(self, term: int, batch: Batch) -> bool:
        await trio.sleep(self.delay_s)
        return await super().apply(term, batch)


class Link:
    """Connection between two voters."""

    def __init__(self, one: int, other: int) -> None:
        self.ends = (one, other)
        self.queues: dict[int, deque[tuple[float, bytes]]] = {
            one: deque(),
            other: deque(),
        }  # by receiver
        self.wake = {one: trio.Event(), other: trio.Event()}
        self.closed = trio.Event()


class Network:
    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.links: dict[frozenset[int], Link] = {}
        self.cut: set[frozenset[int]] = set()
        self.stalled: set[frozenset[int]] = set()
        self.delay_s = 0.003
        self.sent = 0
        self.sent_bytes = 0

    async def keep_connected(self, one: int, other: int) -> None:
        pair = frozenset((one, other))
        while True:
            await trio.sleep(self.cluster.random.uniform(0.005, 0.05))
            nodes = [self.cluster.nodes[each] for each in (one, other)]
            if pair in self.cut or not all(node.is_up for node in nodes):
                continue
            link = self.links[pair] = Link(one, other)
            receivers = {node.node_id: node.receiver for node in nodes}
            async with trio.open_nursery() as nursery:
                for end, peer in ((one, other), (other, one)):
                    receivers[end].connected(peer)
                    nursery.start_soon(self._deliver, link, end, peer, receivers[end])
                await link.closed.wait()
                nursery.cancel_scope.cancel()
            del self.links[pair]
            for node in nodes:
                if node.is_up and node.receiver is receivers[node.node_id]:
                    peer = other if node.node_id == one else one
                    node.receiver.disconnected(peer)

    async def _deliver(self, link: Link, end: int, peer: int, receiver: PeerReceiver) -> None:
        pair = frozenset(link.ends)
        while True:
            if not link.queues[end]:
                link.wake[end] = trio.Event()
                await link.wake[end].wait()
                continue
            arrival, message = link.queues[end][0]
            await trio.sleep_until(arrival)
            while pair in self.stalled:
                await trio.sleep(0.01)
            link.queues[end].popleft()
            try:
                receiver.received(peer, message)
            except PeerProtocolError:
                link.closed.set()

    def send(self, sender: int, peer: int, message: bytes) -> bool:
        link = self.links.get(frozenset((sender, peer)))
        if link is None or link.closed.is_set():
            return False
        self.sent += 1
        self.sent_bytes += len(message)
        queue = link.queues[peer]
        arrival = trio.current_time() + self.cluster.random.uniform(0, self.delay_s)
        queue.append((max(arrival, queue[-1][0] if queue else 0), message))
        link.wake[peer].set()
        return True

    def close(self, one: int, other: int) -> None:
        link = self.links.get(frozenset((one, other)))
        if link is not None:
            link.closed.set()

    def isolate(self, node_id: int, *, silently: bool) -> None:
        for other in self.cluster.nodes:
            if other != node_id:
                pair = frozenset((node_id, other))
                if silently:
                    self.stalled.add(pair)
                else:
                    self.cut.add(pair)
                    self.close(node_id, other)

    def heal(self) -> None:
        self.cut.clear()
        self.stalled.clear()


class MemoryPeers:
    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id
        self.receiver: PeerReceiver | None = None

    def attach(self, receiver: PeerReceiver) -> None:
        self.receiver = receiver

    def send(self, voter_id: int, message: bytes) -> bool:
        node = self._network.cluster.nodes[self._node_id]
        if not node.is_up or node.peers is not self:
            return False
        return self._network.send(self._node_id, voter_id, message)


class Node:
    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.lose_disk()
        self.clock = SkewedClock(1000.0 * node_id, cluster.random.uniform(0.98, 1.02))
        self.is_up = False
        self.durable_index = 0
        self.failure: BaseException | None = None
        self._scope = trio.CancelScope()
        self.stopped = trio.Event()
        self.stopped.set()

    def lose_disk(self) -> None:
        self.disk = SlowDisk()
        self.disk.random = self.cluster.random

    @property
    def receiver(self) -> PeerReceiver:
        assert self.peers.receiver is not None
        return self.peers.receiver

    async def run(self, started: trio.Event) -> None:
        cluster = self.cluster
        self.loader = SlowLoader(CLUSTER)
        self.peers = MemoryPeers(cluster.network, self.node_id)
        self.journal = Journal(self.disk, DIRECTORY, CLUSTER, segment_bytes=cluster.segment_bytes)
        self.voter = RaftVoter(
            self.disk,
            self.clock,
            Random(cluster.random.random()),
            DIRECTORY,
            self.loader,
            self.node_id,
            tuple(cluster.nodes),
            self.peers,
            cluster.timings,
            snapshot_interval_bytes=cluster.snapshot_interval_bytes,
            journal=self.journal,
        )
        self.stopped = trio.Event()
        try:
            with trio.CancelScope() as self._scope:
                await self.voter.start()
                self.is_up = True
                self.failure = None
                started.set()
                await self.voter.run()
        except* Crash:
            pass
        except* (StorageError, RaftFatalError) as group:
            self.failure = group.exceptions[0]
        finally:
            self.is_up = False
            self.durable_index = max(self.durable_index, self.journal.durable.index)
            started.set()
            self.stopped.set()
            for other in cluster.nodes:
                if other != self.node_id:
                    cluster.network.close(self.node_id, other)

    async def stop(self, *, power: bool) -> None:
        """Kill the voter; with `power`, also delete the data that was not synced."""
        self.is_up = False
        self.disk.crashed = True
        self._scope.cancel()
        await self.stopped.wait()
        self.disk = self.disk.after(self.cluster.random if power else None)


class Cluster:
    """Cluster of voters with continuous checks; `run` plays a scenario."""

    def __init__(
        self,
        voters: int = 3,
        seed: int = 0,
        *,
        timings: RaftTimings | None = None,
        snapshot_interval_bytes: int = 1 << 20,
        segment_bytes: int = 4_000,
    ) -> None:
        self.random = Random(seed)
        self.timings = timings or RaftTimings()
        self.snapshot_interval_bytes = snapshot_interval_bytes
        self.segment_bytes = segment_bytes
        self.network = Network(self)
        self.nodes: dict[int, Node] = {}
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, voters + 1)}
        self.majority = voters // 2 + 1
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.highest_commit = 0
        self.leaders: dict[int, int] = {}
        self._reigns: set[tuple[int, int]] = set()
        self.names = 0
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []
        self._seen: dict[Any, int] = {}
        self.nursery: trio.Nursery

    def run(self, scenario: Callable[["Cluster"], Awaitable[None]]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                ids = list(self.nodes)
                for one in ids:
                    for other in ids:
                        if one < other:
                            nursery.start_soon(self.network.keep_connected, one, other)
                nursery.start_soon(self._watch)
                for node in self.nodes.values():
                    await self.start(node.node_id)
                await scenario(self)
                if len(self.up()) == len(self.nodes):
                    await self.wait_equal()
                self.check()
                nursery.cancel_scope.cancel()

        with seeded_scheduler(Random(self.random.random())):
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    async def start(self, node_id: int) -> None:
        started = trio.Event()
        self.nursery.start_soon(self.nodes[node_id].run, started)
        await started.wait()

    # Observing

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    def active(self) -> Node | None:
        """Return the active voter of the latest term."""
        active = [node for node in self.up() if node.voter.status.is_active]
        return max(active, key=lambda node: node.voter.status.term, default=None)

    async def until(self, condition: Callable[[], Any], within_s: float = 30) -> Any:
        deadline = trio.current_time() + within_s
        while not (result := condition()):
            assert trio.current_time() < deadline, "the condition was not met in time"
            await trio.sleep(0.005)
        return result

    async def wait_active(self, within_s: float = 30) -> Node:
        found: Node = await self.until(self.active, within_s)
        return found

    async def wait_equal(self, within_s: float = 30) -> None:
        """Wait until all voters run and have applied all committed entries."""

        def equal() -> bool:
            statuses = [node.voter.status for node in self.up()]
            active = self.active()
            return (
                len(statuses) == len(self.nodes)
                and active is not None
                and len({(status.commit_index, status.end_offset) for status in statuses}) == 1
                and active.journal.last.index == statuses[0].commit_index
            )

        await self.until(equal, within_s)

    # Proposing

    def record(self, size_bytes: int = 0) -> tuple[str, bytes]:
        self.names += 1
        name = f"t{self.names}" + "x" * size_bytes
        return name, encode_record(TopicRecord(name, self.names.to_bytes(16, "big")))

    def propose(self, node: Node, offset: int, size_bytes: int = 0) -> tuple[str, Proposal]:
        name, record = self.record(size_bytes)
        return name, node.voter.propose(node.voter.status.term, offset, [record])

    async def create(self, node: Node, count: int = 1, size_bytes: int = 0) -> list[str]:
        """Propose a number of batches together, and record each outcome for the checks."""
        offset, waiting = node.voter.status.end_offset, []
        for number in range(count):
            with contextlib.suppress(NotCommittedError):
                waiting.append(self.propose(node, offset + number, size_bytes))
        self.unknown += [name for name, _ in waiting]
        made = []
        for name, proposal in waiting:
            try:
                await proposal.wait()
            except NotCommittedError:
                self.unknown.remove(name)
                self.refused.append(name)
            except OutcomeUnknownError:
                pass
            else:
                self.unknown.remove(name)
                self.acknowledged.append(name)
                made.append(name)
                assert name in node.loader.image.topics, "acknowledged, but not replayed"
        return made

    # Checking

    async def _watch(self) -> None:
        while True:
            self.look()
            await trio.sleep(0.004)

    def look(self) -> None:
        for node in self.up():
            core, voter = node.voter._core, node.voter
            assert core is not None
            node.durable_index = node.journal.durable.index
            if core.is_leader:
                leader = self.leaders.setdefault(core.term, node.node_id)
                assert leader == node.node_id, f"M1: two leaders in term {core.term}"
            self._look_at_active(node)
            first = max(self._seen.get(voter, 0), core.log.anchor.index) + 1
            for index in range(first, voter._committed_index + 1):
                entry = core.log.entry(index)
                known = self.committed.setdefault(index, (entry.term, entry.payload))
                assert known == (entry.term, entry.payload), f"M2: entry {index} differs"
            self._seen[voter] = voter._committed_index
            self.highest_commit = max(self.highest_commit, voter._committed_index)
        holding = [n for n in self.nodes.values() if n.durable_index >= self.highest_commit]
        assert len(holding) >= self.majority, f"M3: {self.highest_commit} is not on a majority"

    def _look_at_active(self, node: Node) -> None:
        """Check that a newly active voter has all batches acknowledged before."""
        status = node.voter.status
        controller_term = (node.node_id, status.term)
        if status.is_active and controller_term not in self._reigns:
            self._reigns.add(controller_term)
            if status.term == max(self.leaders):
                assert status.end_offset >= len(self.acknowledged), "active before it caught up"

    def check(self) -> None:
        self.look()
        images = [list(node.loader.image.records()) for node in self.up()]
        assert all(image == images[0] for image in images), "M4: images differ"
        topics = set(self.up()[0].loader.image.topics)
        assert set(self.acknowledged) <= topics, "an acknowledged batch is lost"
        assert not set(self.refused) & topics, "a refused batch took effect"
        assert topics <= {*self.acknowledged, *self.unknown, *self.refused}
        for node in self.nodes.values():
            if node.failure is not None:
                raise node.failure


@contextmanager
def seeded_scheduler(random: Random) -> Iterator[None]:
    run: Any = _run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r
    run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = True, random
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = before
