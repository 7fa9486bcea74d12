"""What befalls replicas, besides what befalls machines (`troubles`).

Most of what can go wrong with replicas takes several things in a row: a replica is alone in sync
and then loses something; one that is about to join becomes another process while its leader's wish
is on its way. Single troubles at random times hardly ever come to that, so these go for it.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import trio

from dataplane.log.recovery.checkpoints import decode_offsets, decode_partition_metadata
from dataplane.log.segments.names import (
    HIGH_WATERMARK_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_folder,
)
from simulations.checkers.log_files import NaiveBatch, naive_segments
from simulations.cluster.cluster_state import Member
from simulations.cluster.faults import STOP_WITHIN_S, TROUBLES, Act, Befalls, stop_machine
from simulations.cluster.supervisor import Kept
from simulations.kernel.storage import Storage
from simulations.replication.replicas import Held, PartitionStory
from simulations.replication.replicated_cluster import WatchedNation
from simulations.replication.unregister_fault import unregister
from wire.records.batches import HEADER_BYTES

DATA: Final = "/data"
# How long somebody who repairs a disk lets the node run before he looks again.
LOOK_AGAIN_S: Final = 2.0
LOOKS: Final = 5
# Before that, what is damaged is served for so long, and perhaps longer.
NOTICED_S: Final = 1.0
# How old an image is at least: the worker has come back and written by then.
OLDER_S: Final = 1.0
# Workers whose connections broke are fenced by then.
FENCED_S: Final = 2.5
# How long a leader's wish may be on its way, for whom no session and no silent channel ends.
SLOW_OF_A_SESSION: Final = 0.6
SLOW_S: Final = 2.2
AT_ONCE_S: Final = 0.0005
NEAR_WITHIN_S: Final = 4.0
# Mostly that is waited for.
WISHED_WITHIN_S: Final = (0.05, 2.0, 2.0)
# So long a leader that was cut off is waited for to be replaced, and then to cut its log.
REPLACED_WITHIN_S: Final = 3.0
CUT_WITHIN_S: Final = 4.0


REPLICA_KINDS: Final = ("alone", "dark workers", "stumble", "overtaken", "unregister")
# What a disk gives back is not what was written to it. `damaged-replicas` draws one of them alone:
# bits that flip after a clean stop are noticed by nobody until they are read, so that beside other
# faults the checkers cannot tell yet what may be missing.
DAMAGE_KINDS: Final = ("data rot", "old image")


class _Rot(NamedTuple):
    folder: str
    topic_id: bytes
    at: tuple[str, int]
    held: Held


_Found: TypeAlias = tuple[_Rot, str, NaiveBatch]


class ReplicaTroubles:
    def __init__(self, nation: WatchedNation) -> None:
        self._nation = nation
        self._stumbles = False  # somebody, at this moment
        self.kinds: dict[str, Befalls] = {
            **TROUBLES,
            "data rot": self.data_rot,
            "alone": self.alone,
            "dark workers": self.dark_workers,
            "stumble": self.stumble,
            "overtaken": self.overtaken,
            "unregister": partial(unregister, nation),
            "old image": self.old_image,
        }

    # Damaged segments

    async def data_rot(self, act: Act) -> None:
        """Bits of records flip while a worker is down. Later somebody does what its log says:

        the damaged folders are moved away, so that they are filled again from other replicas.
        """
        member = act.draw.choice(self._nation.workers)
        kept = member.kept
        behind: list[Member] = []
        if act.draw.random() < 0.5:  # somebody will have to be sent what is damaged
            others = [other for other in self._nation.workers if other is not member]
            behind = [act.draw.choice(others)]
            behind[0].kept.hold()
            stop_machine(act, behind[0].kept, "kill")
            await act.world.sleep(FENCED_S)
        kept.hold()
        await self._stop(act, kept)
        storage = kept.machine.storage
        batches = self._newest(list(self._batches(kept)), member.config.node_id)
        rotten: dict[str, _Rot] = {}
        for rot, path, batch in act.draw.sample(
            batches, min(len(batches), act.draw.choice([1, 3, 10]))
        ):
            inode = storage.file(path)
            position = batch.position + act.draw.randrange(HEADER_BYTES, batch.size)
            storage.flip(inode, position, act.draw.randrange(8))
            kept.machine.say(f"a bit of {path} at {position} flips")
            rot.held.rotten = rot.held.damaged = rot.held.was_damaged = True
            rotten[rot.folder] = rot
        kept.release()
        await act.world.sleep(act.draw.uniform(0.0, 0.5))
        self._release(behind)
        if rotten:
            act.count()
            await act.world.sleep(NOTICED_S)
            await act.last()
            await self._repair(act, kept, storage, rotten)

    async def _stop(self, act: Act, kept: Kept) -> None:
        how = act.draw.choice(["kill", "power", "stop", "stop"])
        if how != "stop":
            stop_machine(act, kept, "kill" if how == "kill" else "power")
            return
        await self._stop_well(kept)

    async def _stop_well(self, kept: Kept) -> None:
        if kept.machine.running:
            kept.stop()
            with trio.move_on_after(STOP_WITHIN_S):
                await kept.machine.fate.done.wait()
        kept.machine.kill()

    def _batches(self, kept: Kept) -> Iterator[_Found]:
        """Of all logs of topics that are known, with what they are in."""
        storage = kept.machine.storage
        worker_id = self._worker_id(kept)
        with suppress(OSError):
            for name in sorted(storage.folder(DATA).entries):
                at = parse_partition_folder(name)
                folder = f"{DATA}/{name}"
                topic_id = None if at is None else topic_id_of(storage, folder)
                if at is None or topic_id is None:
                    continue
                held = self._nation.chronicle.story(topic_id, at[1]).held.get(worker_id)
                for segment in naive_segments(storage, folder) if held else ():
                    for batch in segment.batches:
                        if held is not None and batch.size > HEADER_BYTES:
                            rot = _Rot(folder, topic_id, at, held)
                            yield rot, f"{segment.path}.log", batch

    def _newest(self, batches: list[_Found], worker_id: int) -> list[_Found]:
        """The last ones of each log, of those that only this worker can lead, if there are any."""
        chronicle = self._nation.chronicle
        logs: dict[str, list[_Found]] = {}
        for found in batches:
            logs.setdefault(found[0].folder, []).append(found)
        alone = [
            each
            for each in logs.values()
            if chronicle.isr(chronicle.story(each[0][0].topic_id, each[0][0].at[1])) == (worker_id,)
        ]
        return [found for each in alone or logs.values() for found in each[-3:]]

    def _worker_id(self, kept: Kept) -> int:
        return next(m.config.node_id for m in self._nation.workers if m.kept is kept)

    async def _repair(
        self, act: Act, kept: Kept, storage: Storage, rotten: dict[str, _Rot]
    ) -> None:
        for _ in range(LOOKS):
            kept.hold()
            await self._stop_well(kept)
            rotten = {
                folder: rot
                for folder, rot in rotten.items()
                if kept.machine.storage is storage
                and topic_id_of(storage, folder) == rot.topic_id
                and _is_damaged(storage, folder)
            }
            for rot in rotten.values():
                # A log of which the checkpoints do not know yet would be taken for one that never
                # had anything.
                if _noted(storage, rot.at):
                    _remove(storage, rot.folder)
                    kept.machine.say(f"{rot.folder} is moved away")
                    self._nation.chronicle.moved_away.add((rot.held.worker_id, rot.at))
                    rot.held.rotten, rot.held.storage = True, Storage()
            storage.sync_dir(DATA)
            kept.release()
            if all(topic_id_of(storage, folder) is None for folder in rotten):
                return
            await act.world.sleep(LOOK_AGAIN_S)

    # An older disk

    async def old_image(self, act: Act) -> None:
        """A worker's virtual machine is put back to an image of its disk from some time ago.

        The image was made while it ran, or, in half of these, between a clean stop and a start.
        """
        workers = [m for m in self._nation.workers if not m.config.is_controller]
        if not workers:
            return
        kept = act.draw.choice(workers).kept
        if act.draw.random() < 0.5:
            kept.hold()
            await self._stop_well(kept)
            image = kept.machine.storage.image()
            kept.release()
        else:
            image = kept.machine.storage.image()
        kept.machine.say("an image of its disk is made")
        storage = kept.machine.storage
        await act.world.sleep(OLDER_S + act.trouble.lasts_s)
        if kept.machine.storage is not storage:
            # An older image was put back meanwhile: what this one has, others have replaced since.
            # The ledger says so, and not from which offset on.
            return
        kept.hold()
        await self._stop(act, kept)
        kept.machine.put_back(image)
        kept.ruined = True
        act.count()
        kept.release()

    # Several things in a row

    async def alone(self, act: Act) -> None:
        """One worker is alone in sync for a while, and then loses its disk, or power, or dies."""
        workers = self._nation.workers
        survivor = act.draw.choice(workers)
        others = [member for member in workers if member is not survivor]
        if self._nation.settings.is_combined:  # most voters stay
            voters = [member for member in others if member.config.is_controller]
            others = [m for m in others if not m.config.is_controller]
            others += act.draw.sample(voters, min(1, len(voters)))
        for member in others:
            member.kept.hold()
            stop_machine(act, member.kept, act.draw.choice(["kill", "power"]))
        await act.world.sleep(FENCED_S)
        await act.last()
        act.count()
        returns_later = act.draw.random() < 0.5
        if not returns_later:
            self._release(others)
            await act.world.sleep(act.draw.uniform(0.0, 1.0))
        self._befall(act, survivor)
        if returns_later:
            await act.world.sleep(act.draw.uniform(0.0, 1.0))
            self._release(others)

    def _befall(self, act: Act, member: Member) -> None:
        what = act.draw.choice(["kill", "power", "disk", "disk", "nothing"])
        if what == "disk" and not member.config.is_controller:
            stop_machine(act, member.kept, "power")
            member.kept.machine.lose_disk()
            member.kept.ruined = True
        elif what in ("disk", "power"):
            stop_machine(act, member.kept, "power")
        elif what == "kill":
            stop_machine(act, member.kept, "kill")

    @staticmethod
    def _release(members: list[Member]) -> None:
        for member in members:
            member.kept.release()

    async def dark_workers(self, act: Act) -> None:
        """All workers lose power at once, and the controllers notice before they are back."""
        if self._nation.settings.is_combined:
            return
        workers = list(self._nation.workers)
        for member in workers:
            member.kept.hold()
            stop_machine(act, member.kept, "power")
        act.count()
        await act.world.sleep(FENCED_S)
        act.draw.shuffle(workers)
        for member in workers:
            member.kept.release()
            await act.world.sleep(act.draw.choice([0.0, 0.2, 1.0]))

    async def stumble(self, act: Act) -> None:
        """A worker that is back, and about to join an ISR, becomes another process, with less.

        What leaders have asked for it meanwhile reaches the controllers only then; and in half of
        these nobody sends it again what it has lost before that.
        """
        if self._nation.settings.is_combined or self._stumbles:
            return
        self._stumbles = True
        member = act.draw.choice(self._nation.workers)
        kept = member.kept
        kept.hold()
        stop_machine(act, kept, act.draw.choice(["kill", "power"]))
        await act.world.sleep(FENCED_S)
        internet, settings = act.world.internet, self._nation.settings
        slow_s = min(SLOW_OF_A_SESSION * settings.session_timeout_ms / 1000, SLOW_S)
        links = [
            internet.link(other.name, f"node-{voter}")
            for other in self._nation.workers
            if other is not member
            for voter in range(1, settings.controllers + 1)
        ]
        for link in links:
            link.delay_s = slow_s
        kept.release()
        with trio.move_on_after(NEAR_WITHIN_S):
            while not self._is_near(member):
                await act.world.sleep(0.01)
            act.count()
            with trio.move_on_after(act.draw.choice(WISHED_WITHIN_S)):
                while not self._is_wished(member):
                    await act.world.sleep(0.003)
        cut = self._cut_from_workers(act, member) if act.draw.random() < 0.7 else []
        faults, was_calm = kept.machine.faults, kept.calm
        kept.calm, faults.delay_s = True, AT_ONCE_S  # it is back before the wish is heard
        stop_machine(act, kept, "power")
        if act.draw.random() < 0.2 and not member.config.is_controller:
            kept.machine.lose_disk()
            kept.ruined = True
        await act.world.sleep(slow_s)
        kept.calm, faults.delay_s = was_calm, settings.disk_delay_s
        for link in links:
            link.delay_s = internet.default.delay_s
        for source, target in cut:
            internet.heal(source, target)
        self._stumbles = False

    async def overtaken(self, act: Act) -> None:
        """A leader is replaced without hearing of it, and takes records from clients meanwhile.

        Power goes soon after it is back and has cut them, while it appends what others have.
        """
        leading = [member for member in self._nation.workers if self._led_with_others(member)]
        if not leading:
            return
        member = act.draw.choice(leading)
        kept, internet = member.kept, act.world.internet
        others = [one.name for one in self._nation.members.values() if one is not member]
        pairs = [pair for name in others for pair in ((name, member.name), (member.name, name))]
        for source, target in pairs:
            internet.cut(source, target)
        for name in others:  # at once it is evidence: nobody waits for a session to end
            internet.reset(member.name, name)
        led = self._led_with_others(member)
        with trio.move_on_after(REPLACED_WITHIN_S):
            while led and led == self._led_with_others(member):
                await act.world.sleep(0.05)
        await act.world.sleep(act.draw.uniform(0.2, 1.2))
        ends = self._ends(member)
        for source, target in pairs:
            internet.heal(source, target)
        machine = kept.machine
        with trio.move_on_after(CUT_WITHIN_S):
            while not (cut := self._have_been_cut(member, ends)):
                ends = self._ends(member)
                await act.world.sleep(0.002)
        if not cut or not machine.running or machine.faults.stop_in is not None:
            return
        act.count()
        fate = machine.fate
        machine.stop_at_disk_change(
            act.draw.choice([1, 2, 3, 5, 8]),
            "power",
            act.draw.choice([".log", act.draw.choice(cut)]),
        )
        with trio.move_on_after(STOP_WITHIN_S):
            await fate.done.wait()
        if not fate.done.is_set():
            machine.faults.stop_in = None

    def _led_with_others(self, member: Member) -> set[PartitionStory]:
        """By the metadata, where it is not alone."""
        chronicle, worker_id = self._nation.chronicle, member.config.node_id
        return {
            story
            for story in chronicle.stories.values()
            if (state := chronicle.state(story)) is not None
            and state.leader == worker_id
            and len(state.isr) > 1
        }

    def _ends(self, member: Member) -> dict[PartitionStory, int]:
        worker_id = member.config.node_id
        return {
            story: story.held[worker_id].end
            for story in self._nation.chronicle.stories.values()
            if worker_id in story.held
        }

    def _have_been_cut(self, member: Member, ends: dict[PartitionStory, int]) -> list[str]:
        """The folders of logs that end before where they did."""
        now = self._ends(member)
        return [
            f"{DATA}/{story.topic}-{story.place.partition}/"
            for story, end in ends.items()
            if now.get(story, end) < end
        ]

    def _cut_from_workers(self, act: Act, member: Member) -> list[tuple[str, str]]:
        names = [other.name for other in self._nation.workers if other is not member]
        pairs = [pair for name in names for pair in ((name, member.name), (member.name, name))]
        for source, target in pairs:
            act.world.internet.cut(source, target)
        return pairs

    def _is_near(self, member: Member) -> bool:
        """It lives, and has all that is committed of a partition, without being in sync."""
        chronicle, worker_id = self._nation.chronicle, member.config.node_id
        if not chronicle.image.is_live(worker_id):
            return False
        for story in chronicle.stories.values():
            state, held = chronicle.state(story), story.held.get(worker_id)
            if state is None or held is None or not story.committed or worker_id in state.isr:
                continue
            if worker_id in state.replicas and held.end > max(story.committed):
                return True
        return False

    def _is_wished(self, member: Member) -> bool:
        """A leader has asked for it, and has no answer; what it has there a loss of power takes."""
        for other in self._nation.workers:
            worker = None if other.running is None else other.running.worker
            for partition in () if worker is None else worker.partitions:
                wish = None if partition.leadership is None else partition.leadership.proposed
                if wish is None or member.config.node_id in partition.state.isr:
                    continue
                story = self._nation.chronicle.story(partition.topic_id, partition.index)
                if member.config.node_id in wish.isr and story.committed and not story.is_flushed:
                    return True
        return False


def topic_id_of(storage: Storage, folder: str) -> bytes | None:
    """Of the log in that folder, as its files say; None: they do not."""
    try:
        data = storage.file(f"{folder}/{PARTITION_METADATA}").data
        return decode_partition_metadata(bytes(data))
    except (OSError, ValueError):
        return None


def _is_damaged(storage: Storage, folder: str) -> bool:
    """Some bytes are in no sound batch."""
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
