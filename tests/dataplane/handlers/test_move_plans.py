"""Plans of moves among three nodes: started, described, paused, cancelled; throttles of plans."""

from typing import Any

import pytest

from metaquorum.config.resolution import ConfigSource
from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.move_plans import add_move_plans
from metaquorum.dataplane.prometheus.slices import Slices
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED
from metaquorum.metadata.image import MovePlanImage
from metaquorum.metadata.records import ELIGIBLE_LEADERS, METADATA_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.quorum.controller.plans.move_plans import (
    CANCEL,
    PAUSE,
    RESUME,
    THROTTLE,
    NewMovePlan,
)
from metaquorum.quorum.rpc import methods
from metaquorum.quorum.rpc.methods import (
    APPEND_MOVES,
    CHANGE_MOVE_PLANS,
    CREATE_MOVE_PLAN,
    CreateMovePlan,
    RequestContext,
)
from metaquorum.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from metaquorum.wire.messages.alter_move_plan import AlterMovePlanRequest
from metaquorum.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.describe_move_plans import DescribeMovePlansRequest
from metaquorum.wire.messages.start_move_plan import (
    PlannedPartition,
    PlannedTopic,
    StartMovePlanRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.handlers.test_admin_changes import BROKER, TOPIC, change
from tests.dataplane.replication.throttling.experiment import create
from tests.dataplane.replication.throttling.test_throttling import (
    BATCH,
    BATCH_BYTES,
    RATE,
    SMALL,
    quota_of,
    rate_of,
)
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import RawClient


def asked(*moves: tuple[str, list[int]], **more: Any) -> StartMovePlanRequest:
    topics = [
        PlannedTopic(
            name=topic,
            partitions=[PlannedPartition(partition_index=0, replicas=target, size_bytes=1000)],
        )
        for topic, target in moves
    ]
    return StartMovePlanRequest(topics=topics, **more)


async def started(client: RawClient, *moves: tuple[str, list[int]], **more: Any) -> int:
    answer = await client.call(ApiKey.START_MOVE_PLAN, asked(*moves, **more))
    assert (answer.error_code, answer.error_message) == (0, None)
    return int(answer.plan_id)


async def altered(client: RawClient, plan_id: int, action: str, rate: int = -1) -> str | None:
    request = AlterMovePlanRequest(plan_id=plan_id, action=action, rate_bytes_per_s=rate)
    answer = await client.call(ApiKey.ALTER_MOVE_PLAN, request)
    assert bool(answer.error_code) == bool(answer.error_message)
    message: str | None = answer.error_message
    return message


async def described(client: RawClient, *plan_ids: int) -> list[Any]:
    request = DescribeMovePlansRequest(plan_ids=list(plan_ids) or None, include_moving=True)
    answer = await client.call(ApiKey.DESCRIBE_MOVE_PLANS, request)
    assert answer.error_code == ErrorCode.NONE
    plans: list[Any] = answer.plans
    return plans


def plan_of(cluster: Together, seen_by: int, plan_id: int = 1) -> MovePlanImage:
    plan: MovePlanImage = cluster.worker(seen_by).image.plans[plan_id]
    return plan


def active_controller(cluster: Together) -> int:
    nodes: dict[int, Any] = {node_id: each.node for node_id, each in cluster.nodes.items()}
    return next(
        node_id
        for node_id, node in nodes.items()
        if node.controller_role.quorum.leadership.is_active
    )


async def filled(cluster: Together, *topics: str, batches: int = 100) -> RawClient:
    """Create the topics on workers 1 and 2, each with that many batches; return a client."""
    client = await cluster.connect(1)
    for topic in topics:
        await cluster.create(topic, (1, 2))
        for _ in range(batches):
            await client.produce(topic, bytearray(BATCH), acks=-1)
    return client


@together(**SMALL)
async def test_a_plan_moves_its_partitions_without_its_client_and_its_first_controller(
    cluster: Together,
) -> None:
    client = await filled(cluster, "a", "b", "c", batches=20)
    moves = [(topic, [3, 2]) for topic in "abc"]
    plan_id = await started(client, *moves, batch_size=1, rate_bytes_per_s=RATE)
    client.connection.close()
    await cluster.until(lambda: plan_of(cluster, 2).moving)
    await cluster.restart(active_controller(cluster))
    await cluster.until(lambda: plan_of(cluster, 2).has_ended, 120)
    for topic in "abc":
        assert cluster.state(topic, 2).replicas == (3, 2)
    (plan,) = await described(await cluster.connect(2), plan_id)
    assert (plan.state, plan.begun, plan.done, plan.stopped) == ("complete", 3, 3, 0)
    assert (plan.owner, plan.size_bytes) == ("User:ANONYMOUS", 3000)
    assert plan.ended_ms > plan.created_ms > 0


@together(**SMALL)
async def test_a_plan_is_throttled_on_both_sides_until_its_last_move_ends(
    cluster: Together,
) -> None:
    client = await filled(cluster, "a", batches=150)
    await started(client, ("a", [3, 2]), rate_bytes_per_s=RATE)
    await cluster.until(lambda: cluster.state("a", 3).plan == 1)
    follower, leader = quota_of(cluster, 3, "follower"), quota_of(cluster, 1, "leader")
    await cluster.until(lambda: leader.rate_limit == RATE and follower.rate_limit == RATE)
    assert quota_of(cluster, 1, "follower").rate_limit == UNLIMITED
    assert quota_of(cluster, 3, "leader").rate_limit == UNLIMITED
    (plan,) = await described(client)
    (moving,) = plan.moving
    assert (moving.topic, moving.replicas, moving.adding) == ("a", [3, 2], [3])
    assert (plan.moving_count, plan.moving_bytes, plan.begun_bytes) == (1, 1000, 1000)
    await cluster.world.sleep(4)
    assert await rate_of(cluster, follower, 20) == pytest.approx(RATE, rel=0.05)
    assert await altered(client, 1, "throttle", 20 * RATE) is None
    await cluster.until(lambda: plan_of(cluster, 1).has_ended)
    assert cluster.state("a", 1).plan == 0
    await cluster.until(lambda: leader.rate_limit == follower.rate_limit == UNLIMITED)


@pytest.mark.parametrize("end", ["cancel", "replaced", "deleted"])
@together(**SMALL)
async def test_a_throttle_ends_with_the_record_that_takes_the_partition_out_of_the_plan(
    cluster: Together, end: str
) -> None:
    client = await filled(cluster, "a")
    plan_id = await started(client, ("a", [3, 2]), rate_bytes_per_s=100)
    quotas = [quota_of(cluster, 1, "leader"), quota_of(cluster, 3, "follower")]
    await cluster.until(lambda: all(quota.rate_limit == 100 for quota in quotas))
    if end == "cancel":
        assert await altered(client, plan_id, "cancel") is None
    elif end == "replaced":
        one = ReassignablePartition(partition_index=0, replicas=[1, 2, 3])
        topic = ReassignableTopic(name="a", partitions=[one])
        await client.call(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            AlterPartitionReassignmentsRequest(topics=[topic]),
        )
    else:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=20_000)
        answer = await client.call(ApiKey.DELETE_TOPICS, request)
        assert answer.responses[0].error_code == ErrorCode.NONE
    await cluster.until(lambda: all(quota.rate_limit == UNLIMITED for quota in quotas))
    await cluster.until(lambda: plan_of(cluster, 1).has_ended)
    (plan,) = await described(client)
    assert (plan.done, plan.stopped, plan.moving) == (0, 1, [])
    if end == "replaced":
        await cluster.until(lambda: cluster.state("a", 1).isr == (1, 2, 3))


@together(**SMALL)
async def test_the_throttle_of_an_operator_stays_and_the_lower_rate_holds(
    cluster: Together,
) -> None:
    client = await filled(cluster, "a")
    quota = quota_of(cluster, 3, "follower")
    lists = {"follower.replication.throttled.replicas": "0:3"}
    assert await change(client, TOPIC, "a", lists) == ErrorCode.NONE
    limit = {"follower.replication.throttled.rate": 5 * RATE}
    assert await change(await cluster.connect(3), BROKER, "3", limit) == ErrorCode.NONE
    await cluster.until(lambda: quota.rate_limit == 5 * RATE)
    await started(client, ("a", [3, 2]), rate_bytes_per_s=RATE)
    await cluster.until(lambda: quota.rate_limit == RATE)
    assert await altered(client, 1, "throttle", 50 * RATE) is None
    await cluster.until(lambda: quota.rate_limit == 5 * RATE)
    assert cluster.state("a", 3).is_moving, "the rate is not that after the move"
    await cluster.until(lambda: plan_of(cluster, 3).has_ended, 60)
    assert quota.rate_limit == 5 * RATE, "the operator's stays"
    image = cluster.worker(3).image
    assert image.worker_configs(3) == {"follower.replication.throttled.rate": str(5 * RATE)}
    assert image.topic_configs("a") == lists


async def throttles_of(client: RawClient, worker_id: int) -> dict[str, tuple[str, int, bool]]:
    """Return value, source and read-only flag of the configs of throttled rates, by name."""
    row = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(worker_id), configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[row], include_documentation=True)
    (result,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, request)).results
    assert result.error_code == ErrorCode.NONE
    return {
        each.name: (each.value, each.config_source, each.read_only)
        for each in result.configs
        if each.name.endswith("throttled.rate")
    }


async def replaced(client: RawClient, name: str, values: dict[str, str]) -> int:
    """Replace all configs of a worker; return the error code."""
    configs = [AlterableConfig(name=each, value=value) for each, value in values.items()]
    row = AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = AlterConfigsRequest(resources=[row])
    answer = await client.call(ApiKey.ALTER_CONFIGS, request)
    return int(answer.responses[0].error_code)


@together(**SMALL)
async def test_describe_configs_shows_the_throttles_of_plans_beside_that_of_an_operator(
    cluster: Together,
) -> None:
    client = await filled(cluster, "a", "b")
    clients = {worker_id: await cluster.connect(worker_id) for worker_id in (1, 3)}
    for worker_id in (1, 3):
        assert await throttles_of(clients[worker_id], worker_id) == {}
    limit = {"leader.replication.throttled.rate": "5000"}
    assert await change(clients[1], BROKER, "1", limit) == ErrorCode.NONE
    await started(client, ("a", [3, 2]), rate_bytes_per_s=100)
    await started(client, ("b", [3, 2]), rate_bytes_per_s=200)
    await cluster.until(lambda: len(cluster.worker(1).plan_limits) == 2)
    await cluster.until(lambda: len(cluster.worker(3).plan_limits) == 2)
    set_by = ConfigSource.DYNAMIC_WORKER
    leading = {
        "leader.replication.throttled.rate": ("5000", set_by, False),
        "plan.1.leader.replication.throttled.rate": ("100", set_by, True),
        "plan.2.leader.replication.throttled.rate": ("200", set_by, True),
    }
    assert await throttles_of(clients[1], 1) == leading
    assert await throttles_of(clients[3], 3) == {
        "plan.1.follower.replication.throttled.rate": ("100", set_by, True),
        "plan.2.follower.replication.throttled.rate": ("200", set_by, True),
    }
    for names in (
        {"plan.1.leader.replication.throttled.rate": None},
        {**limit, "plan.1.leader.replication.throttled.rate": "7"},
    ):
        assert await change(clients[1], BROKER, "1", names) == ErrorCode.INVALID_REQUEST
    assert await throttles_of(clients[1], 1) == leading
    # Kafka's tools before 4.0 send all dynamic configs that they have read, and a change.
    values = {name: value for name, (value, _, _) in leading.items()} | {"log.cleaner.threads": "2"}
    assert await replaced(clients[1], "1", values) == ErrorCode.NONE
    image = cluster.worker(1).image
    assert image.worker_configs(1) == {**limit, "log.cleaner.threads": "2"}
    assert await throttles_of(clients[1], 1) == leading
    assert await altered(client, 1, "cancel") is None
    await cluster.until(lambda: len(cluster.worker(1).plan_limits) == 1)
    del leading["plan.1.leader.replication.throttled.rate"]
    assert await throttles_of(clients[1], 1) == leading


@together(min_insync_replicas=1, **SMALL)
async def test_a_replica_that_the_plan_does_not_add_is_not_throttled_by_it(
    cluster: Together,
) -> None:
    client = await filled(cluster, "a", batches=5)
    await cluster.kill(2)
    await cluster.until(lambda: cluster.state("a", 1).isr == (1,))
    for _ in range(100):
        await client.produce("a", bytearray(BATCH), acks=1)
    await started(client, ("a", [3, 2]), rate_bytes_per_s=100)
    await cluster.until(lambda: quota_of(cluster, 1, "leader").rate_limit == 100)
    await cluster.restart(2)
    await cluster.until(lambda: 2 in cluster.state("a", 1).isr, 20)
    end = cluster.replica(3, "a").log.log_end_offset
    assert end * BATCH_BYTES < 10 * BATCH_BYTES, "the added replica waits"


@together(**SMALL)
async def test_a_paused_plan_begins_no_move_and_goes_on_when_it_is_resumed(
    cluster: Together,
) -> None:
    client = await filled(cluster, "a", "b", batches=10)
    moves = ("a", [3, 2]), ("b", [3, 2])
    plan_id = await started(client, *moves, batch_size=1, rate_bytes_per_s=RATE)
    await cluster.until(lambda: cluster.state("a", 1).plan == plan_id)
    assert await altered(client, plan_id, "pause") is None
    await cluster.until(lambda: cluster.state("a", 1).replicas == (3, 2), 60)
    await cluster.world.sleep(3)
    assert not cluster.state("b", 1).is_moving
    assert plan_of(cluster, 1).header.state == "paused"
    assert await altered(client, plan_id, "resume") is None
    await cluster.until(lambda: plan_of(cluster, 1).has_ended, 60)
    assert cluster.state("b", 1).replicas == (3, 2)


@together(**SMALL)
async def test_bad_requests_are_refused_with_a_sentence(cluster: Together) -> None:
    client = await filled(cluster, "a", "b", batches=50)
    for request, message in (
        (asked(("x", [1])), "There is no topic x."),
        (asked(("a", [1]), ("a", [2])), "The plan names partition a-0 more than once."),
        (
            asked(("b", [1]), ("a", [1, 9])),
            "a-0: The manual partition assignment includes broker 9, but no such broker",
        ),
        (asked(("a", [])), "a-0: The manual partition assignment includes an empty replica"),
        (asked(), "from 1 to 200000 moves; this one has 0"),
        (asked(("a", [3]), rate_bytes_per_s=0), "0 would never finish"),
        (asked(("a", [3]), batch_size=501), "from 1 to 500 partitions at the same time"),
    ):
        answer = await client.call(ApiKey.START_MOVE_PLAN, request)
        assert answer.error_code != ErrorCode.NONE
        assert message in answer.error_message
        assert answer.plan_id == -1
    wrong = asked(("a", [3]))
    wrong.topics[0].partitions[0].partition_index = 1
    answer = await client.call(ApiKey.START_MOVE_PLAN, wrong)
    assert "There is no partition a-1; topic a has 1." in answer.error_message
    assert await described(client) == [], "nothing was begun, so no plan has to be remembered"
    plan_id = await started(client, ("a", [3, 2]), rate_bytes_per_s=10)
    answer = await client.call(ApiKey.START_MOVE_PLAN, asked(("a", [1]), ("b", [3])))
    assert f"Partition a-0 is part of plan {plan_id}, which has not ended" in (answer.error_message)
    assert "There is no plan 77" in str(await altered(client, 77, "pause"))
    assert "'stop' is none of start" in str(await altered(client, plan_id, "stop"))
    assert await described(client, 77) == []


@together(**SMALL)
async def test_partitions_that_move_already_are_refused_by_name_with_what_to_do(
    cluster: Together,
) -> None:
    names = "abcdefghijklmn"
    client = await filled(cluster, *names, batches=3)  # the first is admitted at any rate
    planned = [(topic, [3, 2]) for topic in names]
    assert await started(client, *planned[:2], rate_bytes_per_s=1) == 1
    one = ReassignablePartition(partition_index=0, replicas=[3, 2])
    limit = {"follower.replication.throttled.replicas": "*"}
    rate = {"follower.replication.throttled.rate": 1}
    assert await change(await cluster.connect(3), BROKER, "3", rate) == ErrorCode.NONE
    for topic in names[2:]:
        assert await change(client, TOPIC, topic, limit) == ErrorCode.NONE
    await cluster.until(lambda: quota_of(cluster, 3, "follower").rate_limit == 1)
    rows = [ReassignableTopic(name=topic, partitions=[one]) for topic in names[2:]]
    await client.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics=rows)
    )
    await cluster.until(lambda: cluster.state("n", 1).is_moving)
    answer = await client.call(ApiKey.START_MOVE_PLAN, asked(("c", [1]), ("a", [1])))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message == (
        "Partition c-0 moves already, by a reassignment. Wait until it ends, or cancel it with"
        " 'kafka-reassign-partitions.sh --cancel'."
        " Partition a-0 is part of plan 1, which has not ended. Wait for it, or cancel it with"
        " 'mq-admin moves cancel 1'."
    )
    answer = await client.call(ApiKey.START_MOVE_PLAN, asked(*planned))
    assert "12 partitions (c-0, d-0, e-0, f-0, g-0, h-0, i-0, j-0, k-0, l-0 and 2 more) move" in (
        answer.error_message
    )
    assert "2 partitions (a-0, b-0) are part of plan 1" in answer.error_message
    assert list(cluster.worker(1).image.plans) == [1]


def test_a_stopped_move_is_described_and_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Together) -> None:
        client = await filled(cluster, "a", "b", batches=50)
        plan_id = await started(client, ("a", [3, 2]), ("b", [3, 2]), rate_bytes_per_s=1)
        await cluster.until(lambda: len(plan_of(cluster, 1).moving) == 2)
        none = ReassignablePartition(partition_index=0, replicas=None)
        stop = ReassignableTopic(name="a", partitions=[none])
        await client.call(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics=[stop])
        )
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="b")], timeout_ms=20_000)
        await client.call(ApiKey.DELETE_TOPICS, request)
        await cluster.until(lambda: plan_of(cluster, 1).has_ended)
        (plan,) = await described(client, plan_id)
        assert [(each.topic, each.partition_index, each.reason) for each in plan.stops] == [
            ("a", 0, "another client cancelled its move"),
            ("b", 0, "its topic was deleted"),
        ]

    run_together(scenario, **SMALL)
    logged = [each.getMessage() for each in caplog.records if "were stopped" in each.getMessage()]
    said = "; ".join(logged)
    assert "moves of plan 1 were stopped: a-0: another client cancelled its move" in said
    assert "b-0: its topic was deleted" in said


async def page_of(cluster: Together, seen_by: int) -> str:
    page = Page()
    worker = cluster.worker(seen_by)
    await add_move_plans(page, worker.image, Slices(worker.clock))
    return b"".join(page.texts()).decode()


@together(**SMALL)
async def test_the_metrics_show_the_plans_that_have_not_ended(cluster: Together) -> None:
    client = await filled(cluster, "a", "b", "c", batches=50)
    assert 'metaquorum_move_plans{state="running"} 0' in await page_of(cluster, 2)
    moves = [(topic, [3, 2]) for topic in "abc"]
    await started(client, *moves, rate_bytes_per_s=10, batch_size=1)
    await cluster.until(lambda: plan_of(cluster, 2).moving)
    assert await altered(client, 1, "pause") is None
    await cluster.until(lambda: plan_of(cluster, 2).header.state == "paused")
    page = await page_of(cluster, 2)
    for line in (
        'metaquorum_move_plans{state="paused"} 1',
        'metaquorum_move_plans{state="running"} 0',
        'metaquorum_move_plan_moves{plan="1",state="waiting"} 2',
        'metaquorum_move_plan_moves{plan="1",state="moving"} 1',
        'metaquorum_move_plan_moves{plan="1",state="done"} 0',
        'metaquorum_move_plan_bytes_left{plan="1"} 3000',
        'metaquorum_move_plan_throttle_rate{plan="1"} 10',
    ):
        assert line in page
    assert await altered(client, 1, "throttle") is None
    await cluster.until(lambda: not cluster.state("a", 2).is_moving)
    page = await page_of(cluster, 2)
    assert 'metaquorum_move_plan_bytes_left{plan="1"} 2000' in page
    assert "metaquorum_move_plan_throttle_rate{" not in page
    assert await altered(client, 1, "cancel") is None
    await cluster.until(lambda: plan_of(cluster, 2).has_ended)
    assert 'plan="1"' not in await page_of(cluster, 2)


def test_below_their_level_plans_are_refused_also_if_the_controller_does_not_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earlier = (FeatureRange(METADATA_VERSION, 1, 3), FeatureRange(ELIGIBLE_LEADERS, 0, 1))
    monkeypatch.setattr(features, "SUPPORTED_FEATURES", earlier)
    for method in (CREATE_MOVE_PLAN, APPEND_MOVES, CHANGE_MOVE_PLANS):
        monkeypatch.delitem(methods.METHODS, method.name)

    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2))
        client = await cluster.connect(active_controller(cluster) % 3 + 1)
        answer = await client.call(ApiKey.START_MOVE_PLAN, asked(("t", [3, 1])))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "mq-admin cluster upgrade metadata.version=4" in answer.error_message
        for action in (CANCEL, PAUSE, RESUME, THROTTLE):
            message = await altered(client, 1, action)
            assert message is not None
            assert "mq-admin cluster upgrade metadata.version=4" in message
        assert await described(client) == []

    run_together(scenario)


@together()
async def test_a_plan_of_thousands_of_moves_is_sent_in_parts(cluster: Together) -> None:
    count = 2300
    await create(cluster, "many", dict.fromkeys(range(count), (1, 2)))
    client = await cluster.connect(1)
    rows = [
        PlannedPartition(partition_index=index, replicas=[2, 1], size_bytes=1)
        for index in range(count)
    ]
    request = StartMovePlanRequest(topics=[PlannedTopic(name="many", partitions=rows)])
    answer = await client.call(ApiKey.START_MOVE_PLAN, request)
    assert answer.error_code == ErrorCode.NONE
    await cluster.until(lambda: plan_of(cluster, 1, answer.plan_id).has_ended)
    assert plan_of(cluster, 1, answer.plan_id).header.done == count
    assert cluster.state("many", 1).replicas == (2, 1)


@together()
async def test_a_plan_whose_sender_died_before_it_was_sent_is_cancelled_after_a_minute(
    cluster: Together,
) -> None:
    plan = NewMovePlan("User:a", "", None, 1, 5, 0, -1)
    plan_id = await cluster.worker(2).controller_client.change(
        CREATE_MOVE_PLAN, CreateMovePlan(RequestContext("User:a"), plan), timeout_s=10.0
    )
    await cluster.world.sleep(55)
    assert plan_of(cluster, 1, plan_id).header.state == "loading"
    await cluster.until(lambda: plan_of(cluster, 1, plan_id).header.state == "cancelled")
