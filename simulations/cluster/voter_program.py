"""Program of one voter: the shipped voter, channels, loader and controller, and clients of them."""

import math
from random import Random
from typing import Final

import trio

from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import Endpoint as WorkerEndpoint
from metaquorum.metadata.records import TopicRecord, encode_record
from metaquorum.metadata.replicated_log import NotCommittedError, OutcomeUnknownError
from metaquorum.quorum.channel import ChannelIdentity, ChannelListener, Endpoint, PeerMesh
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.heartbeats import WorkerHeartbeat
from metaquorum.quorum.controller.topics import NewPartitions, NewTopic
from metaquorum.quorum.controller.worker_registration import WorkerRegistration
from metaquorum.quorum.raft.proposals import RaftProposal
from metaquorum.quorum.raft.voter import RaftVoter
from metaquorum.quorum.storage.journal import Journal
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.quorum_checkers import ReadsAreCurrent
from metaquorum.simulations.cluster.voter_disks import METADATA_DIR
from metaquorum.simulations.cluster.voter_group import (
    CLUSTER_ID,
    PEER_PORT,
    STRANGE_CLUSTER_ID,
    Voter,
    VoterGroup,
    WatchedLoader,
    WatchedVoter,
    outcome_of,
)
from metaquorum.simulations.kernel.machine import Program
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

SECRET: Final = b"the secret of a simulated cluster"
STRANGER: Final = "stranger"
_WORKER_ID: Final = 101
_INCARNATION: Final = bytes(range(16))
# Errors after which a change may have been made, or may still be made.
_AMBIGUOUS: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TOPIC_ALREADY_EXISTS)


class VoterProgram:
    """Program of one run of a voter's process."""

    def __init__(self, voter_group: VoterGroup, voter: Voter) -> None:
        self.voter_group = voter_group
        self.voter = voter
        self.stopping = trio.Event()

    async def run(self, runtime: Runtime) -> None:
        voter_group, voter, settings = self.voter_group, self.voter, self.voter_group.settings
        voter.runs += 1
        voter.supervisor.stop = self.stopping.set
        # Peers are addressed by the names of their machines.
        voters = {number: (each.name, PEER_PORT) for number, each in voter_group.voters.items()}
        await _make_data_dir(runtime)
        endpoint = Endpoint(runtime, ChannelIdentity(CLUSTER_ID, voter.voter_id, SECRET))
        mesh = PeerMesh(endpoint, voters)
        listener = ChannelListener(endpoint, mesh)
        await listener.listen("", PEER_PORT)
        loader = WatchedLoader(CLUSTER_ID, voter_group, voter.voter_id)
        raft = WatchedVoter(
            runtime.disk,
            runtime.clock,
            runtime.random,
            METADATA_DIR,
            loader,
            voter.voter_id,
            tuple(voters),
            mesh,
            settings.timings,
            snapshot_interval_bytes=settings.snapshot_interval_bytes,
            journal=Journal(runtime.disk, METADATA_DIR, CLUSTER_ID, settings.segment_bytes),
        )
        await raft.start()
        voter.loader, voter.quorum = loader, raft
        voter_group.started(voter.voter_id)
        controller = Controller(raft, loader, runtime.clock, runtime.random, {})
        async with trio.open_nursery() as nursery:
            raft.watch = lambda p: nursery.start_soon(self._watch_proposal, p)
            for task in (listener.run, mesh.run, raft.run, loader.run, controller.run):
                nursery.start_soon(task)
            nursery.start_soon(self._watch_leadership, raft)
            for number in range(settings.drivers):
                draw = voter_group.world.stream(f"driver {voter.voter_id} {voter.runs} {number}")
                driver = Driver(voter_group, raft, controller, loader, draw)
                driver.name = f"{voter.voter_id}-{voter.runs}-{number}"
                nursery.start_soon(driver.run, runtime)
            for number in range(settings.readers):
                name = f"reader {voter.voter_id} {voter.runs}" + (f" {number}" if number else "")
                draw = voter_group.world.stream(name)
                nursery.start_soon(Reader(voter_group, raft, loader, draw).run, runtime)
            await self.stopping.wait()
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await raft.close()

    async def _watch_proposal(self, proposal: RaftProposal) -> None:
        self.voter_group.proposed(proposal.batch, await outcome_of(proposal))

    async def _watch_leadership(self, raft: RaftVoter) -> None:
        known = raft.leadership
        while True:
            if known.leader_id == self.voter.voter_id:
                self.voter_group.leads(self.voter.voter_id, known.term)
            known = await raft.wait_change(known)


async def _make_data_dir(runtime: Runtime) -> None:
    def make() -> None:
        runtime.disk.make_dirs("/data")
        runtime.disk.sync_dir("/")

    await runtime.disk.run(make)


def voter_program(voter_group: VoterGroup, voter: Voter) -> Program:
    voter.loader = voter.quorum = None  # those of the previous process
    return VoterProgram(voter_group, voter).run


def stranger_program(
    voter_group: VoterGroup, as_voter: int, secret: bytes, images: list[int]
) -> Program:
    """Return the program of another cluster's voter, configured with this cluster's addresses."""

    async def run(runtime: Runtime) -> None:
        voters = {number: (each.name, PEER_PORT) for number, each in voter_group.voters.items()}
        voters[as_voter] = (STRANGER, PEER_PORT)
        await _make_data_dir(runtime)
        endpoint = Endpoint(runtime, ChannelIdentity(STRANGE_CLUSTER_ID, as_voter, secret))
        mesh = PeerMesh(endpoint, voters)
        listener = ChannelListener(endpoint, mesh)
        await listener.listen("", PEER_PORT)
        loader = MetadataLoader(STRANGE_CLUSTER_ID)
        raft = RaftVoter(
            runtime.disk,
            runtime.clock,
            runtime.random,
            METADATA_DIR,
            loader,
            as_voter,
            tuple(voters),
            mesh,
            voter_group.settings.timings,
        )
        await raft.start()
        async with trio.open_nursery() as nursery:
            for task in (listener.run, mesh.run, raft.run):
                nursery.start_soon(task)
            while True:
                await sleep(runtime.clock, 0.05)
                images.append(max(raft.status.term, loader.image.end_offset, len(mesh.linked())))

    return run


class Driver:
    """Client in a voter's process that changes topics while that voter is the active controller."""

    name = ""

    def __init__(
        self,
        voter_group: VoterGroup,
        quorum: RaftVoter,
        controller: Controller,
        loader: MetadataLoader,
        draw: Random,
    ) -> None:
        self.voter_group = voter_group
        self._quorum = quorum
        self._controller = controller
        self._loader = loader
        self._draw = draw
        self._made = 0

    async def run(self, runtime: Runtime) -> None:
        while not self.voter_group.closing:
            await sleep(runtime.clock, self._draw.random() * self.voter_group.think_s)
            await self._quorum.wait_active()
            try:
                await self._drive()
            except (KafkaError, NotCommittedError, OutcomeUnknownError) as error:
                self.voter_group.world.count(f"driver: {type(error).__name__}")

    async def _drive(self) -> None:
        self.voter_group.acts += 1
        act = self._draw.choices(
            [self._create, self._delete, self._grow, self._stray], [12, 6, 2, 1]
        )[0]
        if self.voter_group.is_recovering:
            act = self._create
        is_patient = self._draw.random() < 0.95
        with trio.move_on_after(math.inf if is_patient else self._draw.random() * 0.02):
            await act()

    async def _need_worker(self) -> None:
        worker = self._loader.image.workers.get(_WORKER_ID)
        if worker is not None and not worker.fenced:
            return
        registration = WorkerRegistration(
            _WORKER_ID,
            _INCARNATION,
            (WorkerEndpoint("PLAINTEXT", "worker", 9092, "PLAINTEXT"),),
            "worker",
            features=SUPPORTED_FEATURES,
        )
        epoch = (await self._controller.worker_lifecycle.register_worker(registration)).answer
        self._controller.worker_lifecycle.connected(_WORKER_ID, _INCARNATION)
        applied_offset = self._loader.image.end_offset
        await self._controller.worker_lifecycle.heartbeat(
            WorkerHeartbeat(_WORKER_ID, epoch, applied_offset)
        )

    async def _create(self) -> None:
        await self._need_worker()
        topics, draw = self.voter_group.topics, self._draw
        requests = []
        for _ in range(draw.choice([1, 1, 1, 2, 5])):
            self._made += 1
            configs = {"cleanup.policy": draw.choice(["delete", "compact"])}
            requests.append(
                NewTopic(f"t-{self.name}-{self._made}", draw.choice([1, 1, 2, 5]), 1, None, configs)
            )
        names = [request.name for request in requests]
        topics.asked.update(names)
        changed = await self._controller.create_topics(requests)
        for outcome in changed.answer:
            assert outcome.name is not None
            if outcome.code is ErrorCode.NONE:
                topics.created[outcome.name] = changed.end_offset
                self.voter_group.world.count("commits")
                self.voter_group.acknowledged(changed.end_offset)
            elif outcome.code not in _AMBIGUOUS:
                topics.refused.add(outcome.name)
            self.voter_group.world.count(f"create: {outcome.code.name}")

    async def _delete(self) -> None:
        topics = self.voter_group.topics
        names = [name for name in topics.created if name not in topics.deletion_asked]
        if not names:
            return
        name = self._draw.choice(names)
        topics.deletion_asked.add(name)
        changed = await self._controller.delete_topics([(name, None)])
        if changed.answer[0].code is ErrorCode.NONE:
            topics.deleted[name] = changed.end_offset
            self.voter_group.world.count("commits")
            self.voter_group.acknowledged(changed.end_offset)

    async def _grow(self) -> None:
        names = [n for n in self.voter_group.topics.created if n in self._loader.image.topics]
        if names:
            name = self._draw.choice(names)
            partitions = len(self._loader.image.topics[name].partitions)
            changed = await self._controller.create_partitions(
                [NewPartitions(name, partitions + 1)]
            )
            if changed.answer[0] is None:
                self.voter_group.acknowledged(changed.end_offset)

    async def _stray(self) -> None:
        """Propose a batch with a wrong term or a wrong expected offset."""
        self._made += 1
        name = f"stray-{self.name}-{self._made}"
        record = encode_record(TopicRecord(name, self._draw.randbytes(16)))
        term, end_offset = self._quorum.leadership.term, self._loader.image.end_offset
        self.voter_group.topics.asked.add(name)
        self.voter_group.topics.refused.add(name)
        if self._draw.random() < 0.5:
            term -= 1
        else:
            end_offset += self._draw.choice([-1, 1000]) if end_offset else 1000
        await self._quorum.propose(term, end_offset, [record]).wait()


class Reader:
    """Client in a voter's process, which reads after a barrier while that voter is active."""

    def __init__(
        self, voter_group: VoterGroup, quorum: RaftVoter, loader: MetadataLoader, draw: Random
    ) -> None:
        self._voter_group = voter_group
        self._quorum = quorum
        self._loader = loader
        self._draw = draw

    async def run(self, runtime: Runtime) -> None:
        while not self._voter_group.closing:
            await sleep(
                runtime.clock, self._draw.uniform(0.02, self._voter_group.settings.read_think_s)
            )
            await self._quorum.wait_active()
            acknowledged = self._voter_group.acknowledged_offset
            try:
                end_offset = await self._quorum.read_barrier()
            except OutcomeUnknownError:
                self._voter_group.world.count("reads refused")
                continue
            image_offset = self._loader.image.end_offset
            self._voter_group.checker(ReadsAreCurrent).read(acknowledged, end_offset, image_offset)
