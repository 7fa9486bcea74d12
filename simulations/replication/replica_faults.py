"""Faults of replicas, in addition to the faults of machines (`cluster.faults`).

Most bugs of replication need several events in a row: a replica is alone in the ISR and then loses
records; a replica that is about to join restarts while the AlterPartition request that adds it is
in flight. Single faults at random times rarely combine in this way; each fault here is such a
sequence.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import trio

from metaquorum.dataplane.log.recovery.checkpoints import decode_offsets
from metaquorum.dataplane.log.segments.names import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_folder,
)
from metaquorum.simulations.checkers.log_files import NaiveBatch, naive_segments
from metaquorum.simulations.cluster.cluster_state import Member
from metaquorum.simulations.cluster.faults import (
    CLUSTER_FAULTS,
    STOP_WITHIN_S,
    ActiveFault,
    FaultFunction,
    stop_machine,
)
from metaquorum.simulations.cluster.supervisor import Supervisor
from metaquorum.simulations.harness.node import topic_id_of
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.replication.replicas import PartitionHistory, ReplicaLog
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.unregister_fault import unregister
from metaquorum.wire.records.batches import HEADER_BYTES

DATA: Final = "/data"
# Time between two repairs of a disk, in which the node runs.
LOOK_AGAIN_S: Final = 2.0
LOOKS: Final = 5  # most repairs of one disk
# Least time that the worker serves damaged logs before the first repair.
NOTICED_S: Final = 1.0
# Least age of an image; the worker has restarted and written by then.
OLDER_S: Final = 1.0
# Workers whose connections broke are fenced after this time.
FENCED_S: Final = 2.5
# Longest delay of an AlterPartition request: below the session timeout (as a share of it), and
# below the timeout of a silent channel.
SLOW_OF_A_SESSION: Final = 0.6
SLOW_S: Final = 2.2
AT_ONCE_S: Final = 0.0005
NEAR_WITHIN_S: Final = 4.0
# Timeouts of the wait for an AlterPartition request that adds the worker.
REQUESTED_WITHIN_S: Final = (0.05, 2.0, 2.0)
# Timeouts of the waits for a cut-off leader to be replaced, and then to truncate its log.
REPLACED_WITHIN_S: Final = 3.0
CUT_WITHIN_S: Final = 4.0


REPLICA_KINDS: Final = ("alone", "dark workers", "stumble", "overtaken", "unregister")
# The disk returns other data than was written. Each world of `damaged-replicas` draws one of these
# kinds and no other fault: bits that flip after a clean stop stay unnoticed until they are read, so
# in combination with other faults the checkers would not know which records may be missing.
DAMAGE_KINDS: Final = ("data rot", "old image")


class _Rot(NamedTuple):
    folder: str
    topic_id: bytes
    at: tuple[str, int]
    replica: ReplicaLog


_Found: TypeAlias = tuple[_Rot, str, NaiveBatch]


class ReplicaFaults:
    def __init__(self, cluster_state: ReplicatedClusterState) -> None:
        self._cluster_state = cluster_state
        self._stumbles = False  # whether a `stumble` runs at this moment
        self.kinds: dict[str, FaultFunction] = {
            **CLUSTER_FAULTS,
            "data rot": self.data_rot,
            "alone": self.alone,
            "dark workers": self.dark_workers,
            "stumble": self.stumble,
            "overtaken": self.overtaken,
            "unregister": partial(unregister, cluster_state),
            "old image": self.old_image,
        }

    # Damaged segments

    async def data_rot(self, fault: ActiveFault) -> None:
        """Flip bits of records while a worker is down, and repair the logs later.

        The repair is what the worker's log lines advise: move the damaged folders away, so that
        they are filled again from other replicas.
        """
        member = fault.draw.choice(self._cluster_state.workers)
        supervisor = member.supervisor
        behind: list[Member] = []
        if fault.draw.random() < 0.5:  # a follower will have to fetch the damaged batches
            others = [other for other in self._cluster_state.workers if other is not member]
            behind = [fault.draw.choice(others)]
            behind[0].supervisor.hold()
            stop_machine(fault, behind[0].supervisor, "kill")
            await fault.world.sleep(FENCED_S)
        supervisor.hold()
        await self._stop(fault, supervisor)
        storage = supervisor.machine.storage
        batches = self._newest(list(self._batches(supervisor)), member.config.node_id)
        rotten: dict[str, _Rot] = {}
        for rot, path, batch in fault.draw.sample(
            batches, min(len(batches), fault.draw.choice([1, 3, 10]))
        ):
            inode = storage.file(path)
            position = batch.position + fault.draw.randrange(HEADER_BYTES, batch.size)
            storage.flip(inode, position, fault.draw.randrange(8))
            supervisor.machine.say(f"a bit of {path} at {position} flips")
            rot.replica.rotten = rot.replica.damaged = rot.replica.was_damaged = True
            rotten[rot.folder] = rot
        supervisor.release()
        await fault.world.sleep(fault.draw.uniform(0.0, 0.5))
        self._release(behind)
        if rotten:
            fault.count()
            await fault.world.sleep(NOTICED_S)
            await fault.last()
            await self._repair(fault, supervisor, storage, rotten)

    async def _stop(self, fault: ActiveFault, supervisor: Supervisor) -> None:
        how = fault.draw.choice(["kill", "power", "stop", "stop"])
        if how != "stop":
            stop_machine(fault, supervisor, "kill" if how == "kill" else "power")
            return
        await self._stop_well(supervisor)

    async def _stop_well(self, supervisor: Supervisor) -> None:
        if supervisor.machine.running:
            supervisor.stop()
            with trio.move_on_after(STOP_WITHIN_S):
                await supervisor.machine.fate.done.wait()
        supervisor.machine.kill()

    def _batches(self, supervisor: Supervisor) -> Iterator[_Found]:
        """Yield all batches with records, with the log and the file that they are in."""
        storage = supervisor.machine.storage
        worker_id = self._worker_id(supervisor)
        with suppress(OSError):
            for name in sorted(storage.folder(DATA).entries):
                at = parse_partition_folder(name)
                folder = f"{DATA}/{name}"
                topic_id = None if at is None else topic_id_of(storage, folder)
                if at is None or topic_id is None:
                    continue
                replica = self._cluster_state.cluster_history.history(topic_id, at[1]).replicas.get(
                    worker_id
                )
                for segment in naive_segments(storage, folder) if replica else ():
                    for batch in segment.batches:
                        if replica is not None and batch.size > HEADER_BYTES:
                            rot = _Rot(folder, topic_id, at, replica)
                            yield rot, f"{segment.path}.log", batch

    def _newest(self, batches: list[_Found], worker_id: int) -> list[_Found]:
        """Return the last three batches of each log.

        If this worker is alone in the ISR of some partitions, only their logs count.
        """
        cluster_history = self._cluster_state.cluster_history
        logs: dict[str, list[_Found]] = {}
        for found in batches:
            logs.setdefault(found[0].folder, []).append(found)
        alone = [
            each
            for each in logs.values()
            if cluster_history.isr(cluster_history.history(each[0][0].topic_id, each[0][0].at[1]))
            == (worker_id,)
        ]
        return [found for each in alone or logs.values() for found in each[-3:]]

    def _worker_id(self, supervisor: Supervisor) -> int:
        return next(
            m.config.node_id for m in self._cluster_state.workers if m.supervisor is supervisor
        )

    async def _repair(
        self, fault: ActiveFault, supervisor: Supervisor, storage: Storage, rotten: dict[str, _Rot]
    ) -> None:
        for _ in range(LOOKS):
            supervisor.hold()
            await self._stop_well(supervisor)
            rotten = {
                folder: rot
                for folder, rot in rotten.items()
                if supervisor.machine.storage is storage
                and topic_id_of(storage, folder) == rot.topic_id
                and _is_damaged(storage, folder)
            }
            for rot in rotten.values():
                # Without an entry in a checkpoint, the worker would treat the log as always empty.
                if _noted(storage, rot.at):
                    _remove(storage, rot.folder)
                    supervisor.machine.say(f"{rot.folder} is moved away")
                    self._cluster_state.cluster_history.moved_away.add(
                        (rot.replica.worker_id, rot.at)
                    )
                    rot.replica.rotten, rot.replica.storage = True, Storage()
            storage.sync_dir(DATA)
            supervisor.release()
            if all(topic_id_of(storage, folder) is None for folder in rotten):
                return
            await fault.world.sleep(LOOK_AGAIN_S)

    # An older disk

    async def old_image(self, fault: ActiveFault) -> None:
        """Restore an older image of a worker's disk, as of a virtual machine.

        The image is taken while the worker runs, or, in half of the cases, between a clean stop and
        a start.
        """
        workers = [m for m in self._cluster_state.workers if not m.config.is_controller]
        if not workers:
            return
        supervisor = fault.draw.choice(workers).supervisor
        if fault.draw.random() < 0.5:
            supervisor.hold()
            await self._stop_well(supervisor)
            image = supervisor.machine.storage.image()
            supervisor.release()
        else:
            image = supervisor.machine.storage.image()
        supervisor.machine.say("an image of its disk is taken")
        storage = supervisor.machine.storage
        await fault.world.sleep(OLDER_S + fault.plan.lasts_s)
        if supervisor.machine.storage is not storage:
            # An older image was put back meanwhile, so other replicas have replaced records that
            # this image has. The ledger records that loss, but not its first offset.
            return
        supervisor.hold()
        await self._stop(fault, supervisor)
        supervisor.machine.put_back(image)
        supervisor.ruined = True
        fault.count()
        supervisor.release()

    # Sequences of events

    async def alone(self, fault: ActiveFault) -> None:
        """Leave one worker alone in the ISR; then perhaps kill it, or take its power or disk."""
        workers = self._cluster_state.workers
        survivor = fault.draw.choice(workers)
        others = [member for member in workers if member is not survivor]
        if self._cluster_state.settings.is_combined:  # a majority of the voters stays up
            voters = [member for member in others if member.config.is_controller]
            others = [m for m in others if not m.config.is_controller]
            others += fault.draw.sample(voters, min(1, len(voters)))
        for member in others:
            member.supervisor.hold()
            stop_machine(fault, member.supervisor, fault.draw.choice(["kill", "power"]))
        await fault.world.sleep(FENCED_S)
        await fault.last()
        fault.count()
        returns_later = fault.draw.random() < 0.5
        if not returns_later:
            self._release(others)
            await fault.world.sleep(fault.draw.uniform(0.0, 1.0))
        self._inject(fault, survivor)
        if returns_later:
            await fault.world.sleep(fault.draw.uniform(0.0, 1.0))
            self._release(others)

    def _inject(self, fault: ActiveFault, member: Member) -> None:
        what = fault.draw.choice(["kill", "power", "disk", "disk", "nothing"])
        if what == "disk" and not member.config.is_controller:
            stop_machine(fault, member.supervisor, "power")
            member.supervisor.machine.lose_disk()
            member.supervisor.ruined = True
        elif what in ("disk", "power"):
            stop_machine(fault, member.supervisor, "power")
        elif what == "kill":
            stop_machine(fault, member.supervisor, "kill")

    @staticmethod
    def _release(members: list[Member]) -> None:
        for member in members:
            member.supervisor.release()

    async def dark_workers(self, fault: ActiveFault) -> None:
        """Cut the power of all workers at once; controllers fence them before they are back."""
        if self._cluster_state.settings.is_combined:
            return
        workers = list(self._cluster_state.workers)
        for member in workers:
            member.supervisor.hold()
            stop_machine(fault, member.supervisor, "power")
        fault.count()
        await fault.world.sleep(FENCED_S)
        fault.draw.shuffle(workers)
        for member in workers:
            member.supervisor.release()
            await fault.world.sleep(fault.draw.choice([0.0, 0.2, 1.0]))

    async def stumble(self, fault: ActiveFault) -> None:
        """Restart a worker that is about to join an ISR, so that it loses records.

        AlterPartition requests that add the worker reach the controllers only after the restart. In
        70% of the cases the worker cannot fetch the lost records before that.
        """
        if self._cluster_state.settings.is_combined or self._stumbles:
            return
        self._stumbles = True
        member = fault.draw.choice(self._cluster_state.workers)
        supervisor = member.supervisor
        supervisor.hold()
        stop_machine(fault, supervisor, fault.draw.choice(["kill", "power"]))
        await fault.world.sleep(FENCED_S)
        internet, settings = fault.world.internet, self._cluster_state.settings
        slow_s = min(SLOW_OF_A_SESSION * settings.session_timeout_ms / 1000, SLOW_S)
        links = [
            internet.link(other.name, f"node-{voter}")
            for other in self._cluster_state.workers
            if other is not member
            for voter in range(1, settings.controllers + 1)
        ]
        for link in links:
            link.delay_s = slow_s
        supervisor.release()
        with trio.move_on_after(NEAR_WITHIN_S):
            while not self._is_near(member):
                await fault.world.sleep(0.01)
            fault.count()
            with trio.move_on_after(fault.draw.choice(REQUESTED_WITHIN_S)):
                while not self._is_requested(member):
                    await fault.world.sleep(0.003)
        cut = self._cut_from_workers(fault, member) if fault.draw.random() < 0.7 else []
        faults, was_calm = supervisor.machine.faults, supervisor.calm
        supervisor.calm, faults.delay_s = True, AT_ONCE_S  # it restarts before the request arrives
        stop_machine(fault, supervisor, "power")
        if fault.draw.random() < 0.2 and not member.config.is_controller:
            supervisor.machine.lose_disk()
            supervisor.ruined = True
        await fault.world.sleep(slow_s)
        supervisor.calm, faults.delay_s = was_calm, settings.disk_delay_s
        for link in links:
            link.delay_s = internet.default.delay_s
        for source, target in cut:
            internet.heal(source, target)
        self._stumbles = False

    async def overtaken(self, fault: ActiveFault) -> None:
        """Replace a leader that is cut off from the other nodes and still appends clients' records.

        Its machine loses power soon after the leader is back and has truncated those records, while
        it appends the records of the new leader.
        """
        leading = [
            member for member in self._cluster_state.workers if self._led_with_others(member)
        ]
        if not leading:
            return
        member = fault.draw.choice(leading)
        supervisor = member.supervisor
        pairs = await self._replace_leader(fault, member)
        await fault.world.sleep(fault.draw.uniform(0.2, 1.2))
        ends = self._ends(member)
        self._heal(fault, pairs)
        machine = supervisor.machine
        with trio.move_on_after(CUT_WITHIN_S):
            while not (cut := self._have_been_cut(member, ends)):
                ends = self._ends(member)
                await fault.world.sleep(0.002)
        if not cut or not machine.running or machine.faults.stop_in is not None:
            return
        fault.count()
        fate = machine.fate
        machine.stop_at_disk_change(
            fault.draw.choice([1, 2, 3, 5, 8]),
            "power",
            fault.draw.choice([".log", fault.draw.choice(cut)]),
        )
        with trio.move_on_after(STOP_WITHIN_S):
            await fate.done.wait()
        if not fate.done.is_set():
            machine.faults.stop_in = None

    async def _replace_leader(self, fault: ActiveFault, member: Member) -> list[tuple[str, str]]:
        """Cut the worker off from the other nodes until it is replaced; return the cut links."""
        internet = fault.world.internet
        others = [one.name for one in self._cluster_state.members.values() if one is not member]
        pairs = [pair for name in others for pair in ((name, member.name), (member.name, name))]
        for source, target in pairs:
            internet.cut(source, target)
        for name in others:  # a reset is noticed at once, without waiting for the session timeout
            internet.reset(member.name, name)
        led = self._led_with_others(member)
        with trio.move_on_after(REPLACED_WITHIN_S):
            while led and led == self._led_with_others(member):
                await fault.world.sleep(0.05)
        return pairs

    @staticmethod
    def _heal(fault: ActiveFault, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            fault.world.internet.heal(source, target)

    def _led_with_others(self, member: Member) -> set[PartitionHistory]:
        """Return the partitions that the worker leads by the metadata, if not alone in the ISR."""
        cluster_history, worker_id = self._cluster_state.cluster_history, member.config.node_id
        return {
            history
            for history in cluster_history.histories.values()
            if (state := cluster_history.state(history)) is not None
            and state.leader == worker_id
            and len(state.isr) > 1
        }

    def _ends(self, member: Member) -> dict[PartitionHistory, int]:
        worker_id = member.config.node_id
        return {
            history: history.replicas[worker_id].end
            for history in self._cluster_state.cluster_history.histories.values()
            if worker_id in history.replicas
        }

    def _have_been_cut(self, member: Member, ends: dict[PartitionHistory, int]) -> list[str]:
        """Return the folders of logs whose end is below the one in `ends`."""
        now = self._ends(member)
        return [
            f"{DATA}/{history.topic}-{history.place.partition}/"
            for history, end in ends.items()
            if now.get(history, end) < end
        ]

    def _cut_from_workers(self, fault: ActiveFault, member: Member) -> list[tuple[str, str]]:
        names = [other.name for other in self._cluster_state.workers if other is not member]
        pairs = [pair for name in names for pair in ((name, member.name), (member.name, name))]
        for source, target in pairs:
            fault.world.internet.cut(source, target)
        return pairs

    def _is_near(self, member: Member) -> bool:
        """Return whether the worker is live and about to join an ISR.

        A replica of the worker has all committed records of a partition, but is not in its ISR.
        """
        cluster_history, worker_id = self._cluster_state.cluster_history, member.config.node_id
        if not cluster_history.image.is_live(worker_id):
            return False
        for history in cluster_history.histories.values():
            state, replica = cluster_history.state(history), history.replicas.get(worker_id)
            if state is None or replica is None or not history.committed or worker_id in state.isr:
                continue
            if worker_id in state.replicas and replica.end > max(history.committed):
                return True
        return False

    def _is_requested(self, member: Member) -> bool:
        """Return whether an AlterPartition request that adds the worker is in flight.

        Only partitions that a power loss can take records from count: those without flushes.
        """
        for other in self._cluster_state.workers:
            worker = None if other.running is None else other.running.worker
            for partition in () if worker is None else worker.replica_manager:
                request = (
                    None if partition.leader_state is None else partition.leader_state.proposed
                )
                if request is None or member.config.node_id in partition.state.isr:
                    continue
                history = self._cluster_state.cluster_history.history(
                    partition.topic_id, partition.index
                )
                if (
                    member.config.node_id in request.isr
                    and history.committed
                    and not history.is_flushed
                ):
                    return True
        return False


def _is_damaged(storage: Storage, folder: str) -> bool:
    """Return whether some bytes of the log are not part of an intact batch."""
    return any(
        sum(batch.size for batch in segment.batches) != segment.size
        for segment in naive_segments(storage, folder)
    )


def _noted(storage: Storage, at: tuple[str, int]) -> bool:
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
        with suppress(OSError, ValueError):
            if decode_offsets(bytes(storage.file(f"{DATA}/{name}").data)).get(at, 0) > 0:
                return True
    return False


def _remove(storage: Storage, folder: str) -> None:
    for path in list(storage.files(folder)):
        storage.remove(path)
    storage.remove_dir(folder)
