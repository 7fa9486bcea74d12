"""Controllers on three voters: sessions and requests when the active controller fails."""

from random import Random

import pytest
import trio

from metaquorum.metadata.image import NO_LEADER
from metaquorum.quorum.controller.controller import Controller
from metaquorum.quorum.controller.heartbeats import WorkerHeartbeat
from metaquorum.quorum.controller.topics import NewTopic
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from tests.metaquorum.quorum.raft.cluster import Cluster, Node
from tests.metaquorum.quorum.storage.histories import registration


class Controllers:
    """Controller of each voter, and workers that send heartbeats to the active one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.by_node = {
            node.node_id: Controller(node.voter, node.loader, node.clock, Random(1), {})
            for node in cluster.nodes.values()
        }
        for controller in self.by_node.values():
            cluster.nursery.start_soon(controller.run)
        self.epochs: dict[int, int] = {}

    async def join(self, active: Node, *worker_ids: int) -> None:
        controller = self.by_node[active.node_id]
        for worker_id in worker_ids:
            changed = await controller.worker_lifecycle.register_worker(registration(worker_id))
            self.epochs[worker_id] = changed.answer
            await self.beat(active, worker_id)

    async def beat(self, node: Node, worker_id: int) -> None:
        epoch, applied = self.epochs[worker_id], node.loader.image.end_offset
        heartbeat = WorkerHeartbeat(worker_id, epoch, applied)
        await self.by_node[node.node_id].worker_lifecycle.heartbeat(heartbeat)

    async def keep_beating(self, node: Node, *worker_ids: int) -> None:
        while True:
            for worker_id in worker_ids:
                await self.beat(node, worker_id)
            await trio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_active_controller_takes_the_workers_over(seed: int, silently: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        controllers = Controllers(cluster)
        old = await cluster.wait_active()
        await controllers.join(old, 1, 2, 3)
        (made,) = (await controllers.by_node[old.node_id].create_topics([NewTopic("t", 6)])).answer
        assert made.code is ErrorCode.NONE
        cluster.acknowledged.append("t")
        await cluster.wait_equal()

        cluster.network.isolate(old.node_id, silently=silently)
        answers: list[ErrorCode] = []

        async def create_at_the_old_one() -> None:
            cluster.unknown.append("u")
            try:
                controller = controllers.by_node[old.node_id]
                (outcome,) = (await controller.create_topics([NewTopic("u")])).answer
                answers.append(outcome.code)
            except KafkaError as error:
                answers.append(error.code)

        cluster.nursery.start_soon(create_at_the_old_one)
        new = await cluster.until(
            lambda: (active := cluster.active()) is not None and active is not old and active
        )
        assert isinstance(new, Node)
        with trio.CancelScope() as beating:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(controllers.keep_beating, new, 1, 2)
                await trio.sleep(0.55)
                assert new.loader.image.fenced_workers() == set()
                await trio.sleep(0.25)
                assert new.loader.image.fenced_workers() == {3}
                leaders = [each.leader for each in new.loader.image.topics["t"].partitions]
                assert sorted(leaders) == [NO_LEADER, NO_LEADER, 1, 1, 2, 2]
                await cluster.until(lambda: answers)
                beating.cancel()
        assert answers[0] in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
        with pytest.raises(KafkaError) as refused:
            await controllers.beat(old, 1)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        cluster.network.heal()
        await cluster.wait_equal()

    Cluster(3, seed).run(scenario)
