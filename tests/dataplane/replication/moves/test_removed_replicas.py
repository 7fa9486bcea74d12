"""Three nodes: the log of a replica that has moved to another worker is deleted."""

import errno

import pytest

from metaquorum.metadata.image import PartitionImage
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.replication.moves.moving import folders, is_gone, move, start
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.together import Together, together

RECORDS = 5
EVERYTHING = [b"%d" % number for number in range(RECORDS)]


async def filled(cluster: Together, *replicas: int, topic: str = "t") -> None:
    """Create the topic with records on all its replicas, whose checkpoints are written."""
    await cluster.create(topic, replicas)
    await fill(await cluster.connect(replicas[0]), topic, RECORDS)
    await cluster.until(
        lambda: all(cluster.replica(n, topic).high_watermark == RECORDS for n in replicas)
    )
    await cluster.world.sleep(6.0)


def check_no_ledger_entry(cluster: Together) -> None:
    for node in cluster.nodes:
        assert list(cluster.worker(node).replica_manager.replication.ledger) == []


def holds(cluster: Together, node: int, topic: str = "t") -> bool:
    return any(each.topic == topic for each in cluster.worker(node).replica_manager)


@together()
async def test_a_follower_that_is_removed_deletes_its_log(cluster: Together) -> None:
    await filled(cluster, 1, 2)
    await filled(cluster, 1, 2, topic="other")
    await move(cluster, "t", 1, 3)
    await cluster.until(lambda: not holds(cluster, 2))
    (name,) = folders(cluster, 2, "t")
    assert name.endswith("-delete")
    assert not set(cluster.worker(2).fetchers.fetched) - {
        (cluster.worker(2).image.topic("other").topic_id, 0)
    }
    await cluster.until(lambda: not folders(cluster, 2, "t"), 120.0)
    client = await cluster.connect(2)
    row = await client.fetch("t")
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await (await cluster.connect(1)).values("t") == EVERYTHING
    check_no_ledger_entry(cluster)


@together()
async def test_a_leader_that_is_removed_deletes_its_log_and_another_leads(
    cluster: Together,
) -> None:
    await filled(cluster, 1, 2)
    await move(cluster, "t", 3, 2)
    await cluster.until(lambda: is_gone(cluster, 1, "t") and not holds(cluster, 1))
    assert cluster.state("t", 1).leader == 3
    client = await cluster.connect(3)
    assert await client.values("t") == EVERYTHING
    await fill(client, "t", 1)
    check_no_ledger_entry(cluster)


@together()
async def test_a_worker_that_was_down_when_it_was_removed_deletes_its_log_when_it_returns(
    cluster: Together,
) -> None:
    await filled(cluster, 1, 2)
    await cluster.kill(2)
    await move(cluster, "t", 1, 3)
    assert folders(cluster, 2, "t") == ["t-0"]
    await cluster.restart(2)
    assert is_gone(cluster, 2, "t")
    assert not holds(cluster, 2)
    await move(cluster, "t", 1, 2)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == RECORDS)
    check_no_ledger_entry(cluster)
    assert await (await cluster.connect(1)).values("t") == EVERYTHING


@together()
async def test_a_replica_that_returns_has_a_new_log(cluster: Together) -> None:
    await filled(cluster, 1, 2)
    seen: list[PartitionImage] = []

    def has_returned() -> bool:
        seen.append(cluster.state("t", 2))
        return seen[-1].isr == (1, 2)

    for _ in range(3):
        await move(cluster, "t", 1, 3)
        await fill(await cluster.connect(1), "t", 1)
        await start(cluster, "t", 1, 2)
        await cluster.until(has_returned)
        await cluster.until(lambda: not holds(cluster, 3))
    assert {(state.blank, state.offline) for state in seen} == {((), ())}
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == RECORDS + 3)
    assert cluster.replica(2, "t").log.log_start_offset == 0
    assert "t-0" in folders(cluster, 2, "t")
    check_no_ledger_entry(cluster)
    await cluster.restart(2)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
    assert cluster.replica(2, "t").log.log_end_offset == RECORDS + 3
    check_no_ledger_entry(cluster)


@together()
async def test_the_log_of_a_cancelled_move_is_deleted(cluster: Together) -> None:
    await filled(cluster, 1, 2)
    await cluster.kill(2)  # so that the move does not end
    await cluster.until(lambda: cluster.state("t", 1).isr == (1,))
    await start(cluster, "t", 2, 3)
    await cluster.until(lambda: cluster.state("t", 3).isr == (3, 1))
    assert folders(cluster, 3, "t") == ["t-0"]
    await start(cluster, "t")
    await cluster.until(lambda: is_gone(cluster, 3, "t") and not holds(cluster, 3))
    await cluster.until(lambda: cluster.state("t", 3).replicas == (2, 1))
    await cluster.restart(2)
    await cluster.until(lambda: cluster.state("t", 3).isr == (2, 1))
    check_no_ledger_entry(cluster)


@pytest.mark.parametrize("restarts", [False, True])
@together()
async def test_a_log_that_could_not_be_deleted_is_deleted_later_or_used_again(
    cluster: Together, restarts: bool
) -> None:
    await filled(cluster, 1, 2)
    faults = cluster.nodes[2].machine.faults
    faults.refusing = lambda path: errno.EACCES if "/t-0" in path else 0
    await move(cluster, "t", 1, 3)
    await cluster.until(lambda: not holds(cluster, 2))
    assert folders(cluster, 2, "t") == ["t-0"]
    await fill(await cluster.connect(1), "t", 1)
    faults.refusing = None
    if restarts:
        await cluster.restart(2)
        assert is_gone(cluster, 2, "t")
    await move(cluster, "t", 1, 2)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == RECORDS + 1)
    assert "t-0" in folders(cluster, 2, "t")
    check_no_ledger_entry(cluster)
