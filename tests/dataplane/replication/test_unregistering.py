"""Three nodes: a worker is unregistered, and its running process registers again."""

from typing import Any

from metaquorum.dataplane.replication.truncation_ledger import Entry, Reason
from metaquorum.metadata.image import NO_LEADER
from metaquorum.wire.messages.unregister_broker import UnregisterBrokerRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.replication.test_lost_disks import (
    EVERYTHING,
    RECORDS,
    filled,
    report_lost_logs,
    values,
)
from tests.dataplane.replication.test_replicas import TWO_DISKS, break_disk, on_the_second_disk
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import RawClient, batch_of

E = ErrorCode
# Less than the default, so that a paused worker is fenced soon.
SESSION = {"broker_session_timeout_ms": 2000, "broker_heartbeat_interval_ms": 500}


async def unregister(client: RawClient, worker_id: int) -> Any:
    return await client.call(ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=worker_id))


async def pause_and_unregister(cluster: Together, paused: int, other: int) -> None:
    """Pause worker `paused` until it is fenced, then unregister it through worker `other`."""
    cluster.nodes[paused].machine.pause()
    await cluster.until(lambda: paused in cluster.worker(other).image.fenced_workers())
    client = await cluster.connect(other)
    # If the paused node was the active controller, the next one waits for a session timeout.
    for _ in range(20):
        answer = await unregister(client, paused)
        if answer.error_code != E.INVALID_REQUEST:
            break
        await cluster.world.sleep(0.25)
    assert answer.error_code == E.NONE, answer
    assert paused not in cluster.worker(other).image.workers


def ledgers(cluster: Together) -> list[Entry]:
    return [each for node in cluster.nodes for each in cluster.worker(node).isr_manager.ledger]


@together()
async def test_a_live_worker_is_not_unregistered(cluster: Together) -> None:
    await filled(cluster, (1, 2, 3))
    before = cluster.worker(1).image
    for worker_id in (1, 2, 3):
        answer = await unregister(await cluster.connect(1), worker_id)
        assert answer.error_code == E.INVALID_REQUEST
        assert f"Worker {worker_id} is alive" in answer.error_message
        assert "stop the worker" in answer.error_message
    assert cluster.worker(1).image.workers == before.workers
    assert cluster.state("t", 1).isr == (1, 2, 3)


@together(**SESSION)
async def test_a_follower_that_was_unregistered_while_paused_is_in_sync_again(
    cluster: Together,
) -> None:
    client = await filled(cluster, (1, 2, 3))
    before = cluster.worker(3).session.broker_epoch
    await pause_and_unregister(cluster, 3, 1)
    await client.produce("t", batch_of(b"meanwhile"))
    fate = cluster.nodes[3].machine.fate
    cluster.nodes[3].machine.resume()
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))
    assert cluster.nodes[3].machine.fate is fate, "nothing was restarted"
    assert not fate.done.is_set()
    assert cluster.worker(3).session.broker_epoch > before
    await client.produce("t", batch_of(b"after"))
    assert cluster.replica(3, "t").log.log_end_offset == RECORDS + 2
    assert ledgers(cluster) == []


@together(**SESSION)
async def test_a_leader_that_was_unregistered_while_paused_leads_in_a_later_epoch_only(
    cluster: Together,
) -> None:
    await filled(cluster, (1, 2))
    led_in = cluster.state("t", 1).leader_epoch
    await pause_and_unregister(cluster, 1, 2)
    assert cluster.state("t", 2).leader == 2
    cluster.nodes[1].machine.resume()
    await cluster.until(lambda: cluster.state("t", 2).isr == (1, 2))
    await cluster.kill(2)
    await cluster.until(lambda: cluster.state("t", 1).leader == 1)
    assert cluster.state("t", 1).leader_epoch > led_in + 1
    client = await cluster.connect(1)
    await client.produce("t", batch_of(b"alone"))
    await cluster.restart(2)
    # Worker 1 proposes this ISR: the controller takes its current broker epoch only.
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
    assert await values(cluster, 1) == [*EVERYTHING, b"alone"]
    assert ledgers(cluster) == []


@together(**SESSION)
async def test_the_only_replica_of_a_partition_leads_again_and_no_loss_is_recorded(
    cluster: Together,
) -> None:
    await filled(cluster, (3,))
    await pause_and_unregister(cluster, 3, 1)
    assert cluster.state("t", 1).leader == NO_LEADER
    cluster.nodes[3].machine.resume()
    await cluster.until(lambda: cluster.state("t", 1).leader == 3)
    assert cluster.state("t", 1).unclean_epoch == -1
    assert await values(cluster, 3) == EVERYTHING
    assert ledgers(cluster) == []


@together(**SESSION)
async def test_a_kill_after_a_second_registration_is_no_loss_of_power(cluster: Together) -> None:
    """The start markers of the log directories have the broker epoch of the registration."""
    await filled(cluster, (3,))
    await pause_and_unregister(cluster, 3, 1)
    cluster.nodes[3].machine.resume()
    await cluster.until(lambda: cluster.state("t", 1).leader == 3)
    client = await cluster.connect(3)
    await client.produce("t", batch_of(b"after"))
    await cluster.kill(3)
    await cluster.restart(3)
    await cluster.until(lambda: cluster.state("t", 1).leader == 3)
    assert cluster.state("t", 1).unclean_epoch == -1
    assert await values(cluster, 3) == [*EVERYTHING, b"after"]
    assert ledgers(cluster) == []


@together()
async def test_a_worker_that_was_stopped_and_unregistered_comes_back_with_all_that_it_had(
    cluster: Together,
) -> None:
    await filled(cluster, (3,))
    await cluster.kill(3)
    await cluster.until(lambda: 3 in cluster.worker(1).image.fenced_workers())
    client = await cluster.connect(1)
    await cluster.until(lambda: not cluster.worker(1).image.is_live(3))
    await cluster.world.sleep(0.2)
    assert (await unregister(client, 3)).error_code == E.NONE
    await cluster.restart(3)
    await cluster.until(lambda: cluster.state("t", 1).leader == 3)
    assert cluster.state("t", 1).unclean_epoch == -1
    assert ledgers(cluster) == []


@together(node_options=lambda _: TWO_DISKS, **SESSION)
async def test_a_log_that_failed_stays_offline_through_a_second_registration(
    cluster: Together,
) -> None:
    """Otherwise the controller could elect a replica whose log cannot be written."""
    client = await on_the_second_disk(cluster)
    break_disk(cluster, 3)
    await client.produce("t", batch_of(b"lost at 3"))
    await cluster.until(lambda: cluster.state("t", 1).offline == (3,))
    await pause_and_unregister(cluster, 3, 1)
    cluster.nodes[3].machine.resume()
    await cluster.until(lambda: cluster.state("filler", 1).isr == (1, 2, 3))
    assert cluster.state("t", 1).offline == (3,)
    assert cluster.state("t", 1).isr == (1, 2)


@together(**SESSION)
async def test_logs_that_begin_anew_are_told_under_the_registration_that_is_in_force(
    cluster: Together,
) -> None:
    """A worker that is unregistered before it reports its lost logs reports them, then leads."""
    await filled(cluster, (2,))
    await cluster.kill(2)
    report_lost_logs(cluster, 2)
    before = cluster.worker(1).image.broker_epoch(2)
    cluster.nodes[2].machine.faults.delay_s = 0.2  # delays the load of its logs
    cluster.nodes[2].boot()
    await cluster.until(lambda: cluster.worker(1).image.broker_epoch(2) > before)
    await cluster.world.sleep(0.1)  # the response has arrived
    for other in ("node-1", "node-3"):
        cluster.world.internet.cut("node-2", other)
        cluster.world.internet.cut(other, "node-2")
    await cluster.world.sleep(6.0)
    assert (await unregister(await cluster.connect(1), 2)).error_code == E.NONE
    assert cluster.state("t", 1).blank == (), "the lost log is not reported yet"
    cluster.world.internet.heal_all()
    await cluster.until(lambda: cluster.nodes[2].serving)
    await cluster.until(lambda: cluster.state("t", 1).leader == 2)
    state = cluster.state("t", 1)
    assert state.unclean_epoch == state.leader_epoch
    assert [each.reason for each in ledgers(cluster)][:1] == [Reason.LOST_LOG]
