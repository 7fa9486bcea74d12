"""Throttled replication (KIP-73) among three nodes, in virtual time."""

import pytest

from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.replication_quotas import add_replication_quotas
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, ReplicationQuota
from metaquorum.wire.primitives.errors import ErrorCode
from tests.dataplane.handlers.test_admin_changes import BROKER, TOPIC, change
from tests.dataplane.partition.test_partition import config_of
from tests.dataplane.replication.together import Together, run_together, together
from tests.dataplane.serving import batch_of

RATE = 50_000
BATCH = batch_of(bytes(10_000))
BATCH_BYTES = len(BATCH)
LAG_MS = 1000
THROTTLED = "leader.replication.throttled.replicas"
# Small fetches, so that the size of a response does not show in the rates.
SMALL = {
    "replica_fetch_max_bytes": BATCH_BYTES,
    "replica_fetch_response_max_bytes": 4 * BATCH_BYTES,
    "replica_lag_time_max_ms": LAG_MS,
}


async def throttle(
    cluster: Together, side: str, topics: tuple[str, ...], replicas: str = "*", rate: int = RATE
) -> None:
    """Throttle the topics' replicas on that side, with the rate for all workers."""
    client = await cluster.connect(1)
    for topic in topics:
        wanted = {f"{side}.replication.throttled.replicas": replicas}
        assert await change(client, TOPIC, topic, wanted) == ErrorCode.NONE
    limit = {f"{side}.replication.throttled.rate": rate}
    assert await change(client, BROKER, "", limit) == ErrorCode.NONE
    live = [node_id for node_id, node in cluster.nodes.items() if node.serving]
    await cluster.until(
        lambda: all(quota_of(cluster, node_id, side).rate_limit == rate for node_id in live)
    )


def quota_of(cluster: Together, node_id: int, side: str) -> ReplicationQuota:
    quota: ReplicationQuota = getattr(cluster.worker(node_id).isr_manager.quotas, side)
    return quota


async def fall_behind(cluster: Together, topics: dict[str, int], follower: int = 3) -> None:
    """Kill `follower`, and produce batches to the topics without it; `topics` has their numbers."""
    await cluster.kill(follower)
    client = await cluster.connect(1)
    for topic, batches in topics.items():
        await leaves_isr(cluster, topic, follower)
        for _ in range(batches):
            await client.produce(topic, bytearray(BATCH), acks=1)
    # Until then high watermarks wait for a follower that was caught up, so that it soon rejoins.
    await cluster.world.sleep(2 * LAG_MS / 1000)


async def leaves_isr(cluster: Together, topic: str, follower: int) -> None:
    await cluster.until(lambda: follower not in cluster.state(topic, 1).isr)


async def rate_of(cluster: Together, quota: ReplicationQuota, seconds: float) -> float:
    """Return the bytes per second that the quota counts from now on."""
    before = quota.bytes
    await cluster.world.sleep(seconds)
    return (quota.bytes - before) / seconds


@pytest.mark.parametrize("side", ["leader", "follower"])
@together(**SMALL)
async def test_throttled_replicas_move_at_the_rate_of_their_side(
    cluster: Together, side: str
) -> None:
    for topic in ("a", "b", "free"):
        await cluster.create(topic, (1, 2, 3))
    await fall_behind(cluster, {"a": 300, "b": 300, "free": 300})
    await throttle(cluster, side, ("a", "b"))
    await cluster.restart(3)
    await cluster.until(lambda: 3 in cluster.state("free", 1).isr)
    await cluster.world.sleep(11)  # the first window
    quota = quota_of(cluster, 1 if side == "leader" else 3, side)
    assert await rate_of(cluster, quota, 60) == pytest.approx(RATE, rel=0.01)
    ends = [cluster.replica(3, topic).log.log_end_offset for topic in ("a", "b")]
    assert abs(ends[0] - ends[1]) <= 20  # batches
    assert not {"a", "b"} & {t for t in ("a", "b") if 3 in cluster.state(t, 1).isr}
    await throttle(cluster, side, ("a", "b"), rate=100 * RATE)
    await cluster.until(lambda: all(3 in cluster.state(topic, 1).isr for topic in ("a", "b")), 20.0)


@pytest.mark.parametrize("side", ["leader", "follower"])
@together(**{**SMALL, "replica_fetch_max_bytes": BATCH_BYTES * 17 // 10})
async def test_no_part_of_the_rate_is_spent_on_batches_that_are_fetched_again(
    cluster: Together, side: str
) -> None:
    await cluster.create("t", (1, 2, 3))
    await fall_behind(cluster, {"t": 400})
    await throttle(cluster, side, ("t",))
    await cluster.restart(3)
    await cluster.world.sleep(11)
    log, quota = cluster.replica(3, "t").log, quota_of(cluster, 3, "follower")
    if side == "leader":
        quota = quota_of(cluster, 1, side)
    before = log.log_end_offset
    assert await rate_of(cluster, quota, 60) == pytest.approx(RATE, rel=0.02)
    progress = (log.log_end_offset - before) * BATCH_BYTES / 60
    assert progress == pytest.approx(RATE, rel=0.02)


@pytest.mark.parametrize("side", ["leader", "follower"])
@together(**SMALL)
async def test_many_partitions_share_a_rate_of_few_batches(cluster: Together, side: str) -> None:
    """A response has four batches of ten partitions: those that wait come first."""
    topics = tuple(f"t{number}" for number in range(10))
    for topic in topics:
        await cluster.create(topic, (1, 2, 3))
    await fall_behind(cluster, dict.fromkeys(topics, 30))
    await throttle(cluster, side, topics)
    await cluster.restart(3)
    await cluster.world.sleep(20)
    ends = [cluster.replica(3, topic).log.log_end_offset for topic in topics]
    assert sum(ends) == pytest.approx(20 * RATE / BATCH_BYTES, rel=0.15)
    assert min(ends) > 0.6 * max(ends)


@pytest.mark.parametrize(
    ("replicas", "is_throttled"), [("0:1", True), ("0:3", False), ("1:1", False), ("0:3,0:1", True)]
)
@together(**SMALL)
async def test_a_leader_takes_the_pairs_with_its_own_id(
    cluster: Together, replicas: str, is_throttled: bool
) -> None:
    await cluster.create("t", (1, 2, 3))
    await fall_behind(cluster, {"t": 100})
    await throttle(cluster, "leader", ("t",), replicas)
    await cluster.restart(3)
    await cluster.world.sleep(10)
    assert (3 not in cluster.state("t", 1).isr) == is_throttled
    assert (quota_of(cluster, 1, "leader").bytes > 0) == is_throttled


@pytest.mark.parametrize("side", ["leader", "follower"])
@together()
async def test_in_sync_replicas_count_and_are_never_held_back(cluster: Together, side: str) -> None:
    """Q5: with a rate of 1 B/s, producers with acks=all do not wait."""
    await cluster.create("t", (1, 2, 3))
    await throttle(cluster, side, ("t",), rate=1)
    client = await cluster.connect(1)
    began = cluster.world.now
    for _ in range(20):
        await client.produce("t", bytearray(BATCH), acks=-1)
    assert cluster.world.now - began < 5
    counted = [quota_of(cluster, node_id, side).bytes for node_id in cluster.nodes]
    expected = [400_000, 0, 0] if side == "leader" else [0, 200_000, 200_000]
    assert counted == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("replicas", "is_throttled"), [("0:3", True), ("0:1", False), ("1:3", False), ("0:1,0:3", True)]
)
@together(**SMALL)
async def test_a_follower_takes_the_pairs_with_its_own_id(
    cluster: Together, replicas: str, is_throttled: bool
) -> None:
    await cluster.create("t", (1, 2, 3))
    await fall_behind(cluster, {"t": 100})
    await throttle(cluster, "follower", ("t",), replicas)
    await cluster.restart(3)
    await cluster.world.sleep(10)
    assert (3 not in cluster.state("t", 1).isr) == is_throttled
    assert (quota_of(cluster, 3, "follower").bytes > 0) == is_throttled


@pytest.mark.parametrize("change_of", ["rate", "replicas"])
@together(**SMALL)
async def test_a_follower_goes_on_within_a_second_when_its_throttle_ends(
    cluster: Together, change_of: str
) -> None:
    await cluster.create("t", (1, 2, 3))
    await fall_behind(cluster, {"t": 100})
    await throttle(cluster, "follower", ("t",), rate=10)
    await cluster.restart(3)
    await cluster.world.sleep(10)
    assert 3 not in cluster.state("t", 1).isr
    if change_of == "rate":
        await throttle(cluster, "follower", ("t",), rate=10_000_000)
    else:
        await throttle(cluster, "follower", ("t",), "", rate=10)
    await cluster.until(lambda: 3 in cluster.state("t", 1).isr, 3.0)


@pytest.mark.parametrize("side", ["leader", "follower"])
@together(replica_fetch_max_bytes=1)
async def test_a_rate_below_one_response_still_makes_progress(cluster: Together, side: str) -> None:
    """A batch larger than the rate of a whole window is sent, and worked off."""
    await cluster.create("t", (1, 2, 3))
    await fall_behind(cluster, {"t": 3})
    await throttle(cluster, side, ("t",), rate=500)
    await cluster.restart(3)
    await cluster.until(lambda: 3 in cluster.state("t", 1).isr, 60.0)


def metrics_of(cluster: Together, node_id: int) -> dict[str, float]:
    page = Page()
    add_replication_quotas(page, cluster.worker(node_id).isr_manager)
    lines = b"".join(page.texts()).decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


@pytest.mark.parametrize(("side", "node_id"), [("leader", 1), ("follower", 3)])
@together(**SMALL)
async def test_metrics_show_the_throttled_rate_and_whether_the_lag_decreases(
    cluster: Together, side: str, node_id: int
) -> None:
    await cluster.create("t", (1, 2, 3))
    await fall_behind(cluster, {"t": 200})
    await throttle(cluster, side, ("t",))
    await cluster.restart(3)
    await cluster.world.sleep(15)
    samples = metrics_of(cluster, node_id)
    rate = samples[f"kafka_server_{side}replication_byte_rate"]
    assert rate == pytest.approx(RATE, rel=0.2)
    assert samples[f'metaquorum_replication_throttled_rate_limit{{side="{side}"}}'] == RATE
    lag = metrics_of(cluster, 3)["metaquorum_replica_lag_sum"]
    assert 0 < lag < 150
    # A rate far below what is missing: the lag stops decreasing.
    await throttle(cluster, side, ("t",), rate=1)
    await cluster.world.sleep(15)
    stalled = metrics_of(cluster, 3)["metaquorum_replica_lag_sum"]
    await cluster.world.sleep(10)
    assert metrics_of(cluster, 3)["metaquorum_replica_lag_sum"] == stalled > 0


@together()
async def test_the_rate_of_one_worker_precedes_the_rate_of_all(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    await throttle(cluster, "leader", ("t",), rate=7)
    client = await cluster.connect(2)
    name = "leader.replication.throttled.rate"

    def rates() -> list[int]:
        return [quota_of(cluster, node_id, "leader").rate_limit for node_id in (1, 2, 3)]

    assert await change(client, BROKER, "2", {name: 9}) == ErrorCode.NONE
    await cluster.until(lambda: rates() == [7, 9, 7])
    assert await change(client, BROKER, "", {name: None}) == ErrorCode.NONE
    await cluster.until(lambda: rates() == [UNLIMITED, 9, UNLIMITED])
    assert await change(client, BROKER, "2", {name: None}) == ErrorCode.NONE
    await cluster.until(lambda: rates() == [UNLIMITED] * 3)
    assert await change(client, BROKER, "2", {name: -1}) == ErrorCode.INVALID_REQUEST
    assert await change(client, TOPIC, "t", {THROTTLED: "0-1"}) == ErrorCode.INVALID_CONFIG


def test_a_list_that_another_version_wrote_throttles_nothing() -> None:
    for text in ("0-1", "0:1,worker-2", "x", "*,*"):
        config = config_of(
            leader_replication_throttled_replicas=text,
            follower_replication_throttled_replicas=text,
        )
        assert (config.leader_throttled, config.follower_throttled) == (None, None)


@pytest.mark.parametrize("slots", [1000, 0])
def test_appends_to_an_omitted_partition_do_not_end_the_wait_of_the_follower(slots: int) -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2, 3))
        await fall_behind(cluster, {"t": 20})
        await throttle(cluster, "leader", ("t",), rate=100)
        await cluster.restart(3)
        heard = cluster.worker(1).isr_manager
        leader = cluster.replica(1, "t")
        await cluster.world.sleep(2)
        client = await cluster.connect(1)
        fetches, end = 0, leader.log.log_end_offset
        heard_at = heard.heard_at(3)

        def count() -> bool:
            nonlocal fetches, heard_at
            fetches += heard_at != heard.heard_at(3)
            heard_at = heard.heard_at(3)
            return bool(fetches >= 20)

        for _ in range(100):
            await client.produce("t", batch_of(b"x"), acks=1)
            count()
        began = cluster.world.now
        await cluster.until(lambda: count() or cluster.world.now - began > 2)
        assert leader.log.log_end_offset == end + 100
        assert 3 <= fetches < 20  # a fetch ends after replica.fetch.wait.max.ms

    run_together(scenario, max_incremental_fetch_session_cache_slots=slots, **SMALL)
