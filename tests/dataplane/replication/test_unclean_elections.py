"""Three nodes: elections without a live in-sync replica, and the fate of the records."""

import errno

from metaquorum.config.definition import Scope
from metaquorum.metadata.image import NO_LEADER
from metaquorum.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.test_replicas import delete_records
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import RawClient, batch_of

E = ErrorCode
UNCLEAN = "unclean.leader.election.enable"
LAG = {"replica_lag_time_max_ms": 2000}


async def allow(client: RawClient, scope: Scope, name: str, value: str = "true") -> None:
    """Allow or forbid unclean elections for that resource."""
    config = AlterableConfig(name=UNCLEAN, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=int(scope), resource_name=name, configs=[config])
    answer = await client.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource])
    )
    assert answer.responses[0].error_code == E.NONE


async def led_by_one_alone(cluster: Together, **configs: object) -> RawClient:
    """Give worker 1 five records of `t`, and the others, whose disks are full, three of them."""
    await cluster.create("t", (1, 2, 3), **configs)
    client = await cluster.connect(1)
    for number in range(3):
        await client.produce("t", batch_of(b"%d" % number))
    for node in (2, 3):
        cluster.nodes[node].machine.faults.refusing = lambda path: (
            errno.ENOSPC if "/t-0/" in path else 0
        )
    for number in range(3, 5):
        await client.produce("t", batch_of(b"%d" % number))
    await cluster.until(lambda: cluster.state("t", 2).isr == (1,))
    for node in (2, 3):
        assert cluster.replica(node, "t").log.log_end_offset == 3
    return client


async def let_them_write(cluster: Together) -> None:
    for node in (2, 3):
        cluster.nodes[node].machine.faults.refusing = None


@together(**LAG)
async def test_nobody_out_of_sync_leads_until_it_is_allowed_and_then_one_does_at_once(
    cluster: Together,
) -> None:
    await led_by_one_alone(cluster)
    await cluster.kill(1)
    await let_them_write(cluster)
    await cluster.until(lambda: cluster.state("t", 2).leader == NO_LEADER)
    await cluster.world.sleep(30.0)
    before = cluster.state("t", 2)
    assert (before.leader, before.isr, before.elr) == (NO_LEADER, (), (1,))
    assert before.unclean_epoch == -1
    other = await cluster.connect(2)
    await allow(other, Scope.TOPIC, "t")
    await cluster.until(lambda: cluster.state("t", 2).leader == 2, 1.0)
    after = cluster.state("t", 2)
    assert after.unclean_epoch == after.leader_epoch == before.leader_epoch + 1
    await cluster.until(lambda: set(cluster.state("t", 2).isr) == {2, 3})
    await other.produce("t", batch_of(b"anew"))
    await cluster.restart(1)
    await cluster.until(lambda: set(cluster.state("t", 1).isr) == {1, 2, 3})
    assert cluster.replica(1, "t").log.log_end_offset == 4, "3 and 4 are cut"
    assert cluster.state("t", 1).unclean_epoch == after.unclean_epoch, "it is remembered"


@together(**LAG)
async def test_an_empty_log_that_ends_behind_the_new_leaders_begins_anew_with_that_one(
    cluster: Together,
) -> None:
    """All records of this log were deleted, so it has no epoch to compare with the leader's."""
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    for number in range(3):
        await client.produce("t", batch_of(b"%d" % number))
    await cluster.kill(2)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1,))
    for number in range(3, 5):
        await client.produce("t", batch_of(b"%d" % number))
    row = await delete_records(client, "t", 5)
    assert (row.error_code, row.low_watermark) == (E.NONE, 5)
    await cluster.kill(1)
    await cluster.restart(2)
    other = await cluster.connect(2)
    await allow(other, Scope.TOPIC, "t")
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    await cluster.restart(1)
    await cluster.until(lambda: set(cluster.state("t", 1).isr) == {1, 2})
    assert cluster.replica(1, "t").log.log_start_offset == 0
    assert cluster.replica(1, "t").log.log_end_offset == 3
    await other.produce("t", batch_of(b"anew"))
    await cluster.until(lambda: cluster.replica(1, "t").log.log_end_offset == 4)


@together(**LAG)
async def test_where_it_is_allowed_another_leads_in_the_batch_that_fences_the_last_in_sync(
    cluster: Together,
) -> None:
    await led_by_one_alone(cluster, unclean_leader_election_enable="true")
    before = cluster.state("t", 2)
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2) != before)
    after = cluster.state("t", 2)
    assert after.leader == 2
    assert 1 not in after.isr  # 3 may have joined already
    assert after.leader_epoch == before.leader_epoch + 1
    assert after.unclean_epoch == after.leader_epoch


@together(**LAG)
async def test_it_can_be_allowed_for_all_topics_and_forbidden_for_one(cluster: Together) -> None:
    await led_by_one_alone(cluster, unclean_leader_election_enable="false")
    client = await cluster.connect(3)
    await allow(client, Scope.WORKER, "")
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == NO_LEADER)
    await cluster.world.sleep(10.0)
    assert cluster.state("t", 2).leader == NO_LEADER
    asked = ElectLeadersRequest(
        election_type=1,
        topic_partitions=[TopicPartitions(topic="t", partitions=[0])],
        timeout_ms=10_000,
    )
    answer = await client.call(ApiKey.ELECT_LEADERS, asked)
    assert answer.replica_election_results[0].partition_result[0].error_code == E.NONE
    state = cluster.state("t", 3)
    assert (state.leader, state.unclean_epoch) == (2, state.leader_epoch)
