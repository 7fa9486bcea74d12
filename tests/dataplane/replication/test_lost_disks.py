"""Three nodes: the ISR and the leader after a worker restarts with lost records."""

from metaquorum.config.definition import Scope
from metaquorum.dataplane.replication.truncation_ledger import Reason
from metaquorum.metadata.image import NO_LEADER
from metaquorum.simulations.kernel.machine import Machine
from tests.dataplane.replication.test_replicas import fill
from tests.dataplane.replication.test_unclean_elections import allow
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import RawClient, batch_of

RECORDS = 5
EVERYTHING = [b"%d" % number for number in range(RECORDS)]


async def filled(cluster: Together, replicas: tuple[int, ...]) -> RawClient:
    """Fill `t` on all its replicas; return a client of the first one, the leader."""
    await cluster.create("t", replicas, flush_messages=RECORDS)  # synced like an old segment
    client = await cluster.connect(replicas[0])
    await fill(client, "t", RECORDS)
    await cluster.until(
        lambda: all(cluster.replica(n, "t").high_watermark == RECORDS for n in replicas)
    )
    assert cluster.state("t", replicas[0]).isr == replicas
    await cluster.world.sleep(6.0)  # until checkpoints are written
    return client


def report_lost_logs(cluster: Together, node: int) -> None:
    """Delete the partition's folder, and nothing else."""
    storage = cluster.nodes[node].machine.storage
    for path in storage.files("/data/t-0"):
        storage.remove(path)
    storage.remove_dir("/data/t-0")


async def come_back(cluster: Together, *nodes: int) -> None:
    for node in nodes:
        cluster.nodes[node].boot()
    await cluster.until(lambda: all(cluster.nodes[node].serving for node in nodes))


async def values(cluster: Together, node: int) -> list[bytes | None]:
    return await (await cluster.connect(node)).values("t")


@together()
async def test_who_comes_first_without_its_logs_leaves_the_lead_to_whom_has_them(
    cluster: Together,
) -> None:
    await filled(cluster, (1, 2))
    for node in (1, 2, 3):
        await cluster.kill(node)
    report_lost_logs(cluster, 1)
    await come_back(cluster, 1, 3)
    await cluster.until(lambda: not cluster.worker(3).image.is_live(2))
    state = cluster.state("t", 1)
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), (2,))
    assert state.blank == (1,)
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 2).isr == (1, 2))
    state = cluster.state("t", 2)
    assert (state.leader, state.blank, state.unclean_epoch) == (2, (), -1)
    assert await values(cluster, 2) == EVERYTHING
    assert cluster.replica(1, "t").log.log_end_offset == RECORDS


@together()
async def test_the_last_in_sync_without_its_logs_waits_for_an_unclean_election(
    cluster: Together,
) -> None:
    await filled(cluster, (1, 2))
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    client = await cluster.connect(2)
    await client.produce("t", batch_of(b"only here"))
    await cluster.kill(2)
    report_lost_logs(cluster, 2)
    await come_back(cluster, 1, 2)
    await cluster.world.sleep(10.0)
    state = cluster.state("t", 3)
    assert (state.leader, state.isr, state.blank) == (NO_LEADER, (), (2,))
    await allow(await cluster.connect(3), Scope.TOPIC, "t")
    await cluster.until(lambda: cluster.state("t", 3).isr == (1, 2))
    state = cluster.state("t", 3)
    assert (state.leader, state.unclean_epoch) == (1, state.leader_epoch)
    assert await values(cluster, 1) == EVERYTHING, "the one that has most of it"


@together()
async def test_a_log_without_its_topic_id_is_lost_as_one_without_its_folder(
    cluster: Together,
) -> None:
    """A loss of power may take the topic id of a log that was never flushed, and no record."""
    await cluster.create("t", (1, 2))
    await fill(await cluster.connect(1), "t", RECORDS)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == RECORDS)
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).isr == (2,))
    await (await cluster.connect(2)).produce("t", batch_of(b"only here"))
    await cluster.kill(2)
    file = cluster.nodes[2].machine.storage.file("/data/t-0/partition.metadata")
    file.data.clear()
    file.durable.clear()
    await come_back(cluster, 1, 2)
    await cluster.world.sleep(10.0)
    state = cluster.state("t", 3)
    assert (state.leader, state.isr, state.blank) == (NO_LEADER, (), (2,))
    (entry,) = cluster.worker(2).isr_manager.ledger
    assert (entry.reason, entry.offset, entry.high_watermark) == (
        Reason.LOST_LOG,
        0,
        RECORDS + 1,
    )
    await allow(await cluster.connect(3), Scope.TOPIC, "t")
    await cluster.until(lambda: cluster.state("t", 3).isr == (1, 2))
    assert cluster.state("t", 3).leader == 1
    assert await values(cluster, 1) == EVERYTHING, "the one that has most of it"


@together()
async def test_an_empty_log_without_its_topic_id_is_no_loss(cluster: Together) -> None:
    """Its folder was created for a first record, which was not written."""
    await cluster.create("t", (1, 2))
    await fill(await cluster.connect(1), "t", RECORDS)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == RECORDS)
    await cluster.create("u", (2, 1))
    await cluster.kill(2)
    storage = cluster.nodes[2].machine.storage
    storage.make_dirs("/data/u-0")
    storage.create("/data/u-0/partition.metadata")
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("u", 1).isr == (2, 1))
    assert cluster.state("u", 1).blank == ()
    assert not len(cluster.worker(2).isr_manager.ledger)


@together()
async def test_an_only_replica_without_its_log_begins_anew(cluster: Together) -> None:
    await filled(cluster, (2,))
    await cluster.kill(2)
    report_lost_logs(cluster, 2)
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    state = cluster.state("t", 2)
    assert (state.isr, state.blank, state.unclean_epoch) == ((2,), (), state.leader_epoch)
    assert await values(cluster, 2) == []


@together()
async def test_where_all_replicas_have_lost_their_logs_they_begin_anew(cluster: Together) -> None:
    await filled(cluster, (1, 2))
    for node in (1, 2, 3):
        await cluster.kill(node)
    for node in (1, 2):
        report_lost_logs(cluster, node)
    await come_back(cluster, 1, 2, 3)
    await cluster.until(lambda: set(cluster.state("t", 3).isr) == {1, 2})
    state = cluster.state("t", 3)
    assert state.unclean_epoch > 0
    assert await values(cluster, state.leader) == []


@together()
async def test_a_worker_with_a_new_disk_is_filled_again(cluster: Together) -> None:
    client = await filled(cluster, (1, 2, 3))
    await cluster.kill(2)
    await client.produce("t", batch_of(b"meanwhile"))
    cluster.nodes[2].machine.lose_disk()
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))
    assert cluster.state("t", 1).blank == ()
    assert cluster.replica(2, "t").log.log_end_offset == RECORDS + 1
    assert cluster.state("t", 1).unclean_epoch == -1


@together()
async def test_a_new_disk_is_new_until_the_quorum_has_heard_of_it(cluster: Together) -> None:
    await filled(cluster, (1, 2))
    await cluster.kill(1)
    await cluster.until(lambda: cluster.state("t", 2).leader == 2)
    client = await cluster.connect(2)
    await client.produce("t", batch_of(b"only here"))
    await cluster.kill(2)
    await come_back(cluster, 1)
    lost = cluster.nodes[2].machine
    lost.lose_disk()
    cluster.nodes[2].boot()
    await cluster.until(lambda: is_formatted(lost))
    await cluster.kill(2)
    await come_back(cluster, 2)
    state = cluster.state("t", 3)
    assert (state.leader, state.isr, state.blank) == (NO_LEADER, (), (2,))
    assert cluster.replica(1, "t").log.log_end_offset == RECORDS


def is_formatted(machine: Machine) -> bool:
    storage = machine.storage
    return (
        "data" in storage.folder("/").entries
        and "meta.properties" in storage.folder("/data").entries
    )


@together()
async def test_a_log_that_its_disk_has_changed_is_filled_again_by_who_is_in_sync_as_well(
    cluster: Together,
) -> None:
    await cluster.create("t", (1, 2))
    await fill(await cluster.connect(1), "t", RECORDS)
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == RECORDS)
    for node in (1, 2, 3):
        await cluster.kill(node)
    storage = cluster.nodes[1].machine.storage
    segment = storage.file("/data/t-0/00000000000000000000.log")
    storage.flip(segment, len(segment.data) - 1, 0)  # in the last record
    await come_back(cluster, 1, 3)
    await cluster.until(lambda: not cluster.worker(3).image.is_live(2))
    state = cluster.state("t", 1)
    assert (state.leader, {*state.isr, *state.elr}, state.blank) == (NO_LEADER, {2}, (1,))
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 2).isr == (1, 2))
    assert cluster.state("t", 2).unclean_epoch == -1
    assert await values(cluster, 2) == EVERYTHING
    assert cluster.replica(1, "t").log.log_end_offset == RECORDS


@together()
async def test_after_a_loss_of_power_whoever_kept_everything_leads(cluster: Together) -> None:
    client = await filled(cluster, (1, 2))
    await client.produce("t", batch_of(b"not synced"))
    cluster.nodes[1].machine.power_cut()
    for node in (2, 3):
        await cluster.kill(node)
    await come_back(cluster, 1, 3)
    await cluster.until(lambda: not cluster.worker(3).image.is_live(2))
    state = cluster.state("t", 1)
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), (2,))
    assert state.blank == ()
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 2).isr == (1, 2))
    assert cluster.state("t", 2).unclean_epoch == -1
    assert await values(cluster, 2) == [*EVERYTHING, b"not synced"]


@together()
async def test_when_all_have_lost_power_the_last_one_leads_and_the_doubt_is_recorded(
    cluster: Together,
) -> None:
    await filled(cluster, (1, 2, 3))
    for node in (1, 2, 3):
        cluster.nodes[node].machine.power_cut()
    await come_back(cluster, 1, 2, 3)
    await cluster.until(lambda: set(cluster.state("t", 1).isr) == {1, 2, 3})
    state = cluster.state("t", 1)
    assert 0 < state.unclean_epoch <= state.leader_epoch
    assert await values(cluster, state.leader) == EVERYTHING, "they were synced"


@together()
async def test_what_never_had_records_is_not_lost(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    await cluster.create("alone", (1,))
    await cluster.world.sleep(90.0)
    for node in (1, 2):
        await cluster.nodes[node].stop()
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 3).leader == 2)
    await cluster.kill(2)
    await come_back(cluster, 2, 1)
    await cluster.until(lambda: set(cluster.state("t", 3).isr) == {1, 2})
    for topic in ("t", "alone"):
        assert (cluster.state(topic, 3).blank, cluster.state(topic, 3).unclean_epoch) == (
            (),
            -1,
        )


@together()
async def test_when_all_processes_are_killed_nothing_is_lost_and_nothing_doubted(
    cluster: Together,
) -> None:
    await filled(cluster, (1, 2, 3))
    for node in (1, 2, 3):
        await cluster.kill(node)
    await come_back(cluster, 1, 2, 3)
    await cluster.until(lambda: set(cluster.state("t", 1).isr) == {1, 2, 3})
    assert cluster.state("t", 1).unclean_epoch == -1
    assert await values(cluster, cluster.state("t", 1).leader) == EVERYTHING


@together()
async def test_when_all_are_killed_those_that_come_back_need_not_wait_for_the_others(
    cluster: Together,
) -> None:
    await filled(cluster, (1, 2, 3))
    for node in (1, 2, 3):
        await cluster.kill(node)
    await come_back(cluster, 1, 2)
    await cluster.until(lambda: cluster.state("t", 1).leader in (1, 2), 5.0)
    assert await values(cluster, cluster.state("t", 1).leader) == EVERYTHING


@together()
async def test_after_a_stop_in_good_order_machines_may_be_switched_off(cluster: Together) -> None:
    await filled(cluster, (1, 2))
    for node in (1, 2):
        await cluster.nodes[node].stop()
        cluster.nodes[node].machine.power_cut()
    await come_back(cluster, 2)
    await cluster.until(lambda: cluster.state("t", 3).leader == 2)
    assert cluster.state("t", 3).unclean_epoch == -1
    assert await values(cluster, 2) == EVERYTHING
