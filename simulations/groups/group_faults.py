"""Faults of coordinators, in addition to those of replicas (`replica_faults`).

A coordinator that dies between the append of a record and its commit leaves a successor with a log
end that is not committed. Single faults at random times rarely combine in this way.
"""

from collections.abc import Mapping
from typing import Final

import trio

from metaquorum.dataplane.coordinators.partitioning import partition_of
from metaquorum.metadata.internal_topics import CONSUMER_OFFSETS
from metaquorum.simulations.cluster.faults import ActiveFault, FaultFunction, stop_machine
from metaquorum.simulations.replication.replica_faults import FENCED_S, ReplicaFaults
from metaquorum.simulations.replication.replicas import PartitionHistory
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState

GROUP_KINDS: Final = ("uncommitted end",)
# Time to wait for a record that one follower has and the other has not.
APPENDED_WITHIN_S: Final = 2.0
# Longest wait for another leader once the old one may start, which makes it one of a new process.
REPLACED_WITHIN_S: Final = 2.0
ASKED_S: Final = 0.5


class GroupFaults:
    """Faults of the coordinator of one group."""

    def __init__(self, cluster_state: ReplicatedClusterState, group_id: str) -> None:
        self._cluster_state = cluster_state
        self._group_id = group_id
        faults: Mapping[str, FaultFunction] = ReplicaFaults(cluster_state).kinds
        self.kinds = {**faults, "uncommitted end": self.uncommitted_end}

    def _history(self) -> PartitionHistory | None:
        cluster_history = self._cluster_state.cluster_history
        topic = cluster_history.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return None
        index = partition_of(self._group_id, len(topic.partitions))
        return cluster_history.history(topic.topic_id, index)

    async def uncommitted_end(self, fault: ActiveFault) -> None:
        """Kill a coordinator whose last record only one of two followers in the ISR has.

        The other follower is cut off from both, so that the successor's high watermark stays below
        its log end for a while.
        """
        history = self._history()
        if history is None:
            return
        state = self._cluster_state.cluster_history.state(history)
        if state is None or state.leader < 0 or len(state.isr) < 3:
            return
        leader = self._cluster_state.members[state.leader]
        heir, other = fault.draw.sample([each for each in state.isr if each != state.leader], 2)
        internet, name = fault.world.internet, self._cluster_state.members[other].name
        names = [leader.name, self._cluster_state.members[heir].name]
        pairs = [pair for one in names for pair in ((one, name), (name, one))]
        for source, target in pairs:
            internet.cut(source, target)
        with trio.move_on_after(APPENDED_WITHIN_S):
            while not self._has_uncommitted(history, heir):
                await fault.world.sleep(0.002)
        if self._has_uncommitted(history, heir):
            fault.count()
            leader.supervisor.hold()
            stop_machine(fault, leader.supervisor, "kill")
            await fault.world.sleep(FENCED_S + fault.plan.lasts_s)
            leader.supervisor.release()
            await self._until_replaced(fault, history, state.leader_epoch)
        for source, target in pairs:
            internet.heal(source, target)

    async def _until_replaced(
        self, fault: ActiveFault, history: PartitionHistory, leader_epoch: int
    ) -> None:
        """Wait until the partition has another leader, and clients have asked it for a while."""
        with trio.move_on_after(REPLACED_WITHIN_S):
            while True:
                state = self._cluster_state.cluster_history.state(history)
                if state is None or (state.leader >= 0 and state.leader_epoch > leader_epoch):
                    break
                await fault.world.sleep(0.05)
        await fault.world.sleep(ASKED_S)

    @staticmethod
    def _has_uncommitted(history: PartitionHistory, worker_id: int) -> bool:
        """Return whether the worker's replica has a record that no leader has committed."""
        replica = history.replicas.get(worker_id)
        return replica is not None and replica.end > max(history.committed, default=-1) + 1
