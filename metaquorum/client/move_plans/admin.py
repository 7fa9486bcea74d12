"""Requests about plans of moves to a metaquorum cluster."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import ceil, isfinite

from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.administration.quorum import describe_workers
from metaquorum.client.administration.replicas import (
    describe_replicas,
    reported_configs,
    topic_config,
)
from metaquorum.client.cluster import CONTROLLER, Cluster, TopicPartition
from metaquorum.client.errors import AdminError, BrokerError, broker_error
from metaquorum.client.move_plans.explanation import SIDES, lowest_operator_throttle
from metaquorum.client.move_plans.values import (
    CopyOnDisk,
    MovePlan,
    MovingPartition,
    PlanFacts,
    Progress,
    StoppedMove,
)
from metaquorum.client.values import Partition, ResourceType, Topic
from metaquorum.config.definition import LONG_MAX
from metaquorum.metadata.moves.cluster_state import ClusterState, PartitionState, WorkerState
from metaquorum.metadata.moves.estimate import worker_traffic
from metaquorum.metadata.moves.plan import PartitionMove, Plan
from metaquorum.wire.messages.describe_move_plans import (
    DescribedMovePlan,
    DescribeMovePlansResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode


class MoveAdmin:
    """Administration of plans of moves in one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def start(
        self, plan: Plan, *, rate_bytes_per_s: int | None = None, batch_size: int = 100
    ) -> int:
        """Start the plan and return its id. Sizes that are missing in the plan are measured first.

        Raises BrokerError if the cluster refuses the plan, and PlanError if a partition or a worker
        does not exist.
        """
        from metaquorum.wire.messages.start_move_plan import (
            PlannedPartition,
            PlannedTopic,
            StartMovePlanRequest,
            StartMovePlanResponse,
        )

        state = await self._state(plan)
        plan = _with_sizes(plan, state)
        by_topic: dict[str, list[PlannedPartition]] = {}
        for move in plan.moves:
            row = PlannedPartition(
                partition_index=move.partition,
                replicas=list(move.target),
                size_bytes=move.copied_bytes,
            )
            by_topic.setdefault(move.topic, []).append(row)
        request = StartMovePlanRequest(
            timeout_ms=int(self.cluster.timeout_s * 1000),
            rate_bytes_per_s=-1 if rate_bytes_per_s is None else rate_bytes_per_s,
            batch_size=batch_size,
            estimate_s=_estimate_s(state, plan, rate_bytes_per_s),
            topics=[PlannedTopic(name=topic, partitions=rows) for topic, rows in by_topic.items()],
        )
        response: StartMovePlanResponse = await self.cluster.call(
            request, to=CONTROLLER, changes=True
        )
        if response.error_code:
            raise broker_error(response.error_code, response.error_message, "the plan")
        return response.plan_id

    async def alter(self, plan_id: int, action: str, rate_bytes_per_s: int | None = None) -> None:
        """Pause, resume, cancel or throttle a plan. Raises BrokerError if the cluster refuses."""
        from metaquorum.wire.messages.alter_move_plan import (
            AlterMovePlanRequest,
            AlterMovePlanResponse,
        )

        request = AlterMovePlanRequest(
            timeout_ms=int(self.cluster.timeout_s * 1000),
            plan_id=plan_id,
            action=action,
            rate_bytes_per_s=-1 if rate_bytes_per_s is None else rate_bytes_per_s,
        )
        response: AlterMovePlanResponse = await self.cluster.call(
            request, to=CONTROLLER, changes=True
        )
        if response.error_code:
            raise broker_error(response.error_code, response.error_message, f"plan {plan_id}")

    async def describe(
        self, plan_ids: Collection[int] | None = None, *, include_moving: bool = False
    ) -> list[MovePlan]:
        """Return these plans (None: all), in the order of their ids; unknown ones are left out."""
        from metaquorum.wire.messages.describe_move_plans import DescribeMovePlansRequest

        request = DescribeMovePlansRequest(
            plan_ids=None if plan_ids is None else sorted(plan_ids), include_moving=include_moving
        )
        response: DescribeMovePlansResponse = await self.cluster.call(request)
        if response.error_code:
            raise broker_error(response.error_code, response.error_message, "the plans")
        return [_plan(row, response.now_ms) for row in response.plans]

    async def progress(self, plan_ids: Collection[int] | None = None) -> list[Progress]:
        """Return these plans (None: all) with the bytes that each has copied, and its throttles."""
        plans = await self.describe(plan_ids, include_moving=True)
        moving = [each for plan in plans for each in plan.moving]
        topics = {each.topic for each in moving}
        sizes = await self._sizes(topics, _receivers(moving))
        live = await self.cluster.live_nodes() if moving else []
        throttles, lists = await self._operator_throttles(_involved(moving) & {*live}, topics)
        return [
            Progress(plan, _copied(plan, sizes), lowest_operator_throttle(plan, throttles, lists))
            for plan in plans
        ]

    async def facts(self, plan_id: int) -> PlanFacts:
        """Return what is known about the moves of a plan. Raises BrokerError if it is unknown."""
        plans = {each.plan_id: each for each in await self.describe(include_moving=True)}
        plan = plans.pop(plan_id, None)
        if plan is None:
            raise broker_error(ErrorCode.RESOURCE_NOT_FOUND, "it does not exist", f"plan {plan_id}")
        workers = {each.worker_id: each for each in await describe_workers(self.cluster)}
        asked = [
            (
                Topic(each.topic, "", False, ()),
                Partition(each.partition, each.leader, -1, each.target, each.isr, ()),
            )
            for each in plan.moving
        ]
        views = await describe_replicas(self.cluster, asked)
        involved = {
            each
            for each in _involved(plan.moving)
            if each in workers and not workers[each].is_fenced
        }
        topics = {each.topic for each in plan.moving}
        throttles, lists = await self._operator_throttles(involved, topics)
        others = [each for each in plans.values() if not each.has_ended]
        receivers = [each for each in _receivers(plan.moving) if each in involved]
        copies = await self._copies(topics, receivers)
        return PlanFacts(plan, workers, views, throttles, lists, others, copies)

    async def _operator_throttles(
        self, workers: Collection[int], topics: Collection[str]
    ) -> tuple[dict[tuple[int, str], int], dict[tuple[str, str], str]]:
        """Return an operator's rates and lists of throttled replicas, as in `PlanFacts`.

        Workers that fail are left out.
        """
        throttles: dict[tuple[int, str], int] = {}
        lists: dict[tuple[str, str], str] = {}
        for side in SIDES if workers else ():
            for worker_id in sorted(workers):
                rate = await self._operator_rate(worker_id, side)
                if rate is not None:
                    throttles[worker_id, side] = rate
            found = await topic_config(
                self.cluster, sorted(topics), f"{side}.replication.throttled.replicas"
            )
            lists |= {(topic, side): value for topic, value in found.items()}
        return throttles, lists

    async def _operator_rate(self, worker_id: int, side: str) -> int | None:
        name = f"{side}.replication.throttled.rate"
        try:
            found = await reported_configs(
                self.cluster, ResourceType.BROKER, [str(worker_id)], name, worker_id
            )
        except (AdminError, BrokerError):
            return None  # it has just failed
        value = found.get(str(worker_id), "")
        rate = int(value) if value.isdigit() else LONG_MAX
        return None if rate == LONG_MAX else rate

    async def _sizes(
        self, topics: Collection[str], nodes: Sequence[int]
    ) -> dict[tuple[TopicPartition, int], int]:
        """Return the bytes of each replica on these nodes; nodes that fail are left out."""
        copies = await self._copies(topics, nodes)
        return {where: copy.size_bytes for where, copy in copies.items()}

    async def _copies(
        self, topics: Collection[str], nodes: Sequence[int]
    ) -> dict[tuple[TopicPartition, int], CopyOnDisk]:
        """Return the replicas of the topics on these nodes; nodes that fail are left out."""
        copies: dict[tuple[TopicPartition, int], CopyOnDisk] = {}
        for node in nodes:
            try:
                dirs = await AdminClient(self.cluster).describe_log_dirs([node])
            except (AdminError, BrokerError):
                continue
            for log_dir in dirs:
                for replica in log_dir.replicas:
                    if replica.topic in topics and not replica.is_future:
                        where = TopicPartition(replica.topic, replica.partition)
                        copies[where, node] = CopyOnDisk(
                            log_dir.path, replica.size_bytes, log_dir.usable_bytes
                        )
        return copies

    async def _state(self, plan: Plan) -> ClusterState:
        """Return the partitions of the plan, and all workers. Unknown topics are left out."""
        names = sorted({move.topic for move in plan.moves})
        described = await AdminClient(self.cluster).describe_topics(names)
        topics = [topic for topic in described.values() if isinstance(topic, Topic)]
        sizes: Mapping[TopicPartition, int] = {}
        if any(move.size_bytes is None for move in plan.moves):
            live = await self.cluster.live_nodes()
            largest: dict[TopicPartition, int] = defaultdict(int)
            for (where, _), size in (await self._sizes(set(names), live)).items():
                largest[where] = max(largest[where], size)
            sizes = largest
        known = {(move.topic, move.partition): move.size_bytes for move in plan.moves}
        partitions = []
        for topic in topics:
            for each in topic.partitions:
                given = known.get((topic.name, each.index))
                measured = sizes.get(TopicPartition(topic.name, each.index), 0)
                partitions.append(
                    PartitionState(
                        topic.name,
                        each.index,
                        tuple(each.replicas),
                        each.leader,
                        measured if given is None else given,
                    )
                )
        workers = [WorkerState(each.worker_id) for each in await describe_workers(self.cluster)]
        return ClusterState(tuple(workers), tuple(partitions))


def _with_sizes(plan: Plan, state: ClusterState) -> Plan:
    """Return the plan with the present replicas and the sizes of its partitions."""
    known = {(each.topic, each.partition): each for each in state.partitions}
    moves = []
    for move in plan.moves:
        now = known.get((move.topic, move.partition))
        if now is not None:
            size = now.size_bytes
            move = PartitionMove(move.topic, move.partition, now.replicas, move.target, size)
        moves.append(move)
    return Plan(tuple(moves), plan.throttle_bytes_per_s, plan.cluster_id)


def _estimate_s(state: ClusterState, plan: Plan, rate_bytes_per_s: int | None) -> int:
    """Return the seconds that the plan takes with this throttle, or -1 if that is not known."""
    if rate_bytes_per_s is None or rate_bytes_per_s < 1:
        return -1
    traffic = worker_traffic(state, plan).values()
    time_s = max((each.time_s(rate_bytes_per_s) for each in traffic), default=0.0)
    return ceil(time_s) if isfinite(time_s) else -1


def _involved(moving: Sequence[MovingPartition]) -> set[int]:
    """Return the workers that send or receive copies."""
    workers = {worker_id for each in moving for worker_id in (*each.adding, each.leader)}
    return {worker_id for worker_id in workers if worker_id is not None}


def _receivers(moving: Sequence[MovingPartition]) -> list[int]:
    return sorted({worker_id for each in moving for worker_id in each.adding})


def _copied(plan: MovePlan, sizes: Mapping[tuple[TopicPartition, int], int]) -> int | None:
    if plan.begun_bytes is None or plan.moving_bytes is None:
        return plan.size_bytes if plan.done == plan.moves else None
    copied = plan.begun_bytes - plan.moving_bytes
    for each in plan.moving:
        copied += min(
            each.size_bytes, sum(sizes.get((each.where, worker_id), 0) for worker_id in each.adding)
        )
    return copied


def _plan(row: DescribedMovePlan, now_ms: int) -> MovePlan:
    return MovePlan(
        row.plan_id,
        row.owner,
        row.client_id,
        row.state,
        _known(row.rate_bytes_per_s),
        row.batch_size,
        row.moves,
        row.size_bytes,
        _known(row.estimate_s),
        row.created_ms,
        row.ended_ms or None,
        row.begun,
        row.done,
        row.stopped,
        row.moving_count,
        _known(row.begun_bytes),
        _known(row.moving_bytes),
        [
            MovingPartition(
                each.topic,
                each.partition_index,
                each.replicas,
                each.adding,
                each.removing,
                each.isr,
                _known(each.leader_id),
                each.size_bytes,
            )
            for each in row.moving
        ],
        now_ms,
        [StoppedMove(each.topic or None, each.partition_index, each.reason) for each in row.stops],
    )


def _known(value: int) -> int | None:
    return None if value < 0 else value
