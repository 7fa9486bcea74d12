"""/metrics: all metrics in a format that Prometheus parses, without blocking the event loop."""

import os
import re
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from metaquorum.dataplane.instruments.histogram import GROWTH, TURN_S, Histogram
from metaquorum.dataplane.prometheus.catalog import METRICS
from metaquorum.dataplane.prometheus.elections import ElectionCounts
from metaquorum.dataplane.prometheus.exposition import Page, labels
from metaquorum.metadata.image import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from metaquorum.runtime import Network
from metaquorum.runtime.system import real_runtime
from metaquorum.wire.messages.describe_quota_use import AskedClient, DescribeQuotaUseRequest
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.counted_work import Steps
from tests.dataplane.quotas.test_quota_enforcement import send, set_quota
from tests.dataplane.replication.together import Together, together
from tests.dataplane.serving import Served, batch_of, in_trio, serving
from tests.nodes import PATIENCE_S, Node

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def exchange(served: Served, request: bytes) -> bytes:
    """Send the request; return all bytes until the endpoint closes the connection."""
    address = served.node.metrics_address
    assert address is not None
    return await exchange_with(real_runtime().network, address, request)


async def exchange_with(network: Network, address: tuple[str, int], request: bytes) -> bytes:
    connection = await network.connect(*address)
    received, buffer = bytearray(), bytearray(1 << 16)
    try:
        await connection.send(request)
        while count := await connection.receive_into(buffer):
            received += buffer[:count]
    finally:
        connection.close()
    return bytes(received)


def get(path: str = "/metrics", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n".encode()


async def scrape(served: Served) -> Samples:
    """Return all samples by name and labels, after a check against the catalog."""
    return samples_of(await exchange(served, get()))


def samples_of(response: bytes) -> Samples:
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-type: text/plain; version=0.0.4" in head
    assert f"content-length: {len(body)}".encode() in head
    return read(body.decode())


def read(text: str) -> Samples:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        metric = METRICS[name]
        assert metric.kind.value == family.type
        for sample in family.samples:
            assert set(sample.labels) <= set(metric.labels), sample
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} appears twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **of: object) -> float:
    return samples[name, frozenset((key, str(text)) for key, text in of.items())]


TRAFFIC = "kafka_server_brokertopicmetrics_"


@in_trio
async def test_traffic_requests_logs_and_the_quorum_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        client = await served.connect()
        await client.create("t", 2)
        batch = batch_of(b"one", b"two")
        await client.produce("t", batch)
        await client.produce("t", batch, partition=1)
        await client.fetch("t")
        await client.send(struct.pack(">ihhihb", 11, ApiKey.API_VERSIONS, 99, 1, -1, 0))
        await client.frame()
        samples = await scrape(served)
        for of in ({}, {"topic": "t"}):
            assert value(samples, TRAFFIC + "messagesin_total", **of) == 4
            assert value(samples, TRAFFIC + "bytesin_total", **of) == 2 * len(batch)
            assert value(samples, TRAFFIC + "bytesout_total", **of) == len(batch)
        assert value(samples, TRAFFIC + "totalproducerequests_total") == 2
        requests = "kafka_network_requestmetrics_"
        assert value(samples, requests + "requests_total", request="Produce", version=9) == 2
        assert value(samples, requests + "requests_total", request="ApiVersions", version=-1) == 1
        assert value(samples, requests + "totaltimems_count", request="Fetch") == 1
        assert value(samples, requests + "totaltimems", request="Produce", quantile=0.99) > 0
        sockets = {"listener": "PLAINTEXT", "networkProcessor": 0}
        connections = "kafka_server_socket_server_metrics_connection_"
        assert value(samples, connections + "count", **sockets) == 1
        assert value(samples, connections + "creation_total", **sockets) == 1
        where = {"topic": "t", "partition": 0}
        assert value(samples, "kafka_log_log_size", **where) == len(batch)
        assert value(samples, "kafka_log_log_logendoffset", **where) == 2
        assert value(samples, "kafka_cluster_partition_insyncreplicascount", **where) == 1
        assert value(samples, "metaquorum_partition_bytesin_total", **where) == len(batch)
        assert value(samples, "kafka_server_leaderreplication_byte_rate") == 0
        assert value(samples, "metaquorum_replica_lag_sum") == 0
        assert value(samples, "kafka_server_replicamanager_leadercount") == 2
        assert value(samples, "kafka_server_replicamanager_underreplicatedpartitions") == 0
        assert value(samples, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert value(samples, "kafka_controller_kafkacontroller_globalpartitioncount") == 2
        assert value(samples, "kafka_server_raft_metrics_current_state_info", state="leader") == 1
        # The worker's totals include deleted topics.
        await client.delete("t")
        samples = await scrape(served)
        assert value(samples, TRAFFIC + "messagesin_total") == 4
        assert (TRAFFIC + "messagesin_total", frozenset({("topic", "t")})) not in samples


@in_trio
async def test_more_in_sync_replicas_than_replicas_are_not_required(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        client = await served.connect()
        await client.create("t", 2, min_insync_replicas=2)
        await client.produce("t", batch_of(b"accepted"))
        samples = await scrape(served)
        replicas = "kafka_server_replicamanager_"
        assert value(samples, replicas + "underminisrpartitioncount") == 0
        assert value(samples, replicas + "atminisrpartitioncount") == 2


@in_trio
async def test_errors_are_told_by_their_codes(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        client = await served.connect()
        await client.create("t")
        await client.create("t")
        await client.produce("nowhere", batch_of(b"x"), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broken = batch_of(b"x")
        broken[-1] ^= 1
        for _ in range(2):
            await client.produce("t", broken, error=ErrorCode.CORRUPT_MESSAGE)
        assert (await client.fetch("t", 7)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        names = [MetadataRequestTopic(name=name) for name in ("t", "nowhere")]
        asked = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        told = await client.call(ApiKey.METADATA, asked)
        assert [len(topic.partitions) for topic in told.topics] == [1, 0]
        samples = await scrape(served)
        errors = {
            (of["request"], of["error"]): count
            for (name, labels), count in samples.items()
            if name == "kafka_network_requestmetrics_errors_total"
            for of in (dict(labels),)
        }
        assert errors == {
            ("CreateTopics", "TOPIC_ALREADY_EXISTS"): 1,
            ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
            ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
            ("Produce", "CORRUPT_MESSAGE"): 2,
            ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
        }
        assert value(samples, TRAFFIC + "failedproducerequests_total") == 3
        assert value(samples, TRAFFIC + "failedfetchrequests_total") == 1
        times = "kafka_network_requestmetrics_localtimems_count"
        assert value(samples, times, request="Produce") == 3
        waited = value(
            samples, "kafka_network_requestmetrics_remotetimems_count", request="CreateTopics"
        )
        assert waited == 2


@in_trio
async def test_what_clients_may_create_at_once_is_told_by_the_controller(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        await set_quota(served, "controller_mutation_rate", 0.01)  # one in 100 s
        client = await served.connect()
        await client.create("t", 20)
        samples = await scrape(served)
        of = {"resource": "ControllerMutation", "clientId": "test"}
        assert -20 < value(samples, "kafka_server_quota_tokens", **of) < -15
        asked = AskedClient(user="ANONYMOUS", client_id="test")
        answer = await client.call(
            ApiKey.DESCRIBE_QUOTA_USE, DescribeQuotaUseRequest(clients=[asked])
        )
        (use,) = answer.uses
        assert (use.quota_key, use.quota) == ("controller_mutation_rate", 0.01)
        assert use.client_id == "test"
        assert 15 < use.used <= 20
        assert 1500 < use.delay_s < 2000


@in_trio
async def test_a_long_poll_counts_its_wait_and_what_it_brought_once(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        client, other = await served.connect(), await served.connect()
        await client.create("t")
        batch = batch_of(b"one")
        await other.produce("t", batch)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def poll() -> None:
                wait_ms = int(PATIENCE_S * 1000)
                await client.fetch("t", min_bytes=2 * len(batch), max_wait_ms=wait_ms)

            nursery.start_soon(poll)
            while not served.worker.long_polls:
                await trio.sleep(0.001)
            waits_s = trio.current_time()
            await trio.sleep(0.1)
            least_ms = (trio.current_time() - waits_s) * 1000
            await other.produce("t", batch)
        most_ms = (trio.current_time() - began_s) * 1000
        samples = await scrape(served)
        assert value(samples, TRAFFIC + "bytesout_total", topic="t") == 2 * len(batch)
        times = "kafka_network_requestmetrics_totaltimems"
        found_ms = value(samples, times + "_sum", request="Fetch")
        assert 0.99 * least_ms <= found_ms <= 1.01 * most_ms  # rounded


@in_trio
async def test_quotas_are_told_by_who_shares_them(tmp_path: Path) -> None:
    configs = {"quota_window_size_seconds": 60}  # the rate of the last eleven minutes
    async with serving(tmp_path, metrics=True, **configs) as served:
        client = await served.connect()
        await client.create("t")
        await set_quota(served, "producer_byte_rate", 10)
        throttle_ms = await send(client, batch_of(bytes(15_000)))
        assert throttle_ms > 0
        samples = await scrape(served)
        (of,) = [dict(key[1]) for key in samples if key[0] == "metaquorum_quota_value"]
        assert of["resource"] == "Produce"
        assert value(samples, "metaquorum_quota_value", **of) == 10
        rate = value(samples, "kafka_server_quota_byte_rate", **of)
        assert value(samples, "metaquorum_quota_utilization", **of) == pytest.approx(
            rate / 10, rel=1e-4
        )
        assert rate > 10
        told_ms = value(samples, "kafka_server_quota_throttle_time", **of)
        assert told_ms == pytest.approx(throttle_ms, abs=1)
        assert value(samples, "metaquorum_quota_throttles_total", **of) == 1
        assert value(samples, "metaquorum_muted_connections", resource="Produce") == 1


@pytest.mark.slow
def test_the_process_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path, None, "--metrics-listen", "127.0.0.1:0")
    node.is_executed = True  # the start time of a fork is that of the warm process
    began_s = time.time()
    node.start()
    try:
        found = re.search(r"metrics at (http://\S+/metrics)", node.errors.read_text())
        assert found is not None
        with urlopen(found[1], timeout=PATIENCE_S) as answer:
            samples = read(answer.read().decode())
    finally:
        node.stop()
    lived_s = time.time() - began_s + 1  # the wall clock may be adjusted by some milliseconds
    assert 0 < value(samples, "process_cpu_seconds_total") < lived_s * (os.cpu_count() or 1)
    assert value(samples, "process_resident_memory_bytes") > 10_000_000
    assert value(samples, "process_open_fds") > 5
    assert abs(value(samples, "process_start_time_seconds") - began_s) < lived_s


@together()
async def test_replication_is_told(cluster: Together) -> None:
    await cluster.create("t", (1, 2, 3))
    client = await cluster.connect(1)
    batch = batch_of(b"one")
    await client.produce("t", batch)
    leader, follower = (cluster.replica(node, "t") for node in (1, 2))
    await cluster.until(lambda: follower.high_watermark == 1)
    assert leader.traffic[:4] == (1, len(batch), 0, 0)
    assert leader.traffic.replicated_bytes_out == 2 * len(batch)
    assert follower.traffic == (0, 0, 0, len(batch), 0)
    context = cluster.worker(1).isr_manager.context
    assert (context.isr_shrinks, context.isr_expands) == (0, 0)
    await cluster.kill(3)
    await cluster.until(lambda: len(leader.isr) == 2)
    assert context.isr_shrinks == 1


@together(replica_fetch_max_bytes=100)
async def test_what_a_follower_lacks_is_told_while_it_lacks_it(cluster: Together) -> None:
    await cluster.create("t", (1, 2))
    client = await cluster.connect(1)
    await client.produce("t", batch_of(b"one"))
    await cluster.until(lambda: cluster.replica(2, "t").high_watermark == 1)
    assert cluster.worker(2).fetchers.max_lag() == 0
    await cluster.kill(2)
    await cluster.until(lambda: len(cluster.replica(1, "t").isr) == 1)
    count = 200
    for number in range(count):
        await client.produce("t", batch_of(b"%d" % number))
    await cluster.restart(2)
    lags: list[int] = []

    def has_caught_up() -> bool:
        lag = cluster.worker(2).fetchers.max_lag()
        end = cluster.replica(2, "t").log.log_end_offset
        if lag:
            lags.append(lag)
            assert abs(end + lag - (count + 1)) <= 1  # a record in flight
        return end == count + 1 and not lag

    await cluster.until(has_caught_up)
    assert lags == sorted(lags, reverse=True)
    assert len(set(lags)) > 1


def partition(leader: int, epoch: int, **more: Any) -> PartitionImage:
    return PartitionImage((1, 2, 3), more.pop("isr", (1,)), leader, epoch, epoch, **more)


@pytest.mark.parametrize(
    ("was", "now", "counts"),
    [
        (partition(1, 5, isr=(1, 2)), partition(2, 6, isr=(2,)), (0, 0)),
        (partition(1, 5, elr=(2,)), partition(2, 6, isr=(2,), elr=(1,)), (1, 0)),
        (partition(-1, 5, isr=(), elr=(1, 2)), partition(1, 6, elr=(2,)), (1, 0)),
        (partition(-1, 5, isr=(), elr=(1, 2)), partition(1, 6, unclean_epoch=6), (0, 1)),
        (partition(-1, 5), partition(3, 6, isr=(3,), unclean_epoch=6), (0, 1)),
        (partition(1, 5, elr=(2,)), partition(-1, 6, isr=(), elr=(1, 2)), (0, 0)),
        (partition(1, 5, unclean_epoch=5), partition(1, 5, isr=(1, 2), unclean_epoch=5), (0, 0)),
    ],
)
def test_elections_that_are_worth_an_alert_are_counted(
    was: PartitionImage, now: PartitionImage, counts: tuple[int, int]
) -> None:
    def image(state: PartitionImage) -> MetadataImage:
        topic = TopicImage("t", b"t" * 16, (state, partition(1, 1)))
        empty = MetadataImage.empty("c")
        topics, names = empty.topics.edit(), empty.topic_names.edit()
        topics["t"], names[topic.topic_id] = topic, "t"
        return replace(empty, topics=topics.finish(), topic_names=names.finish())

    async def main() -> None:
        seen = ElectionCounts()
        await seen.publish(MetadataDelta.none(image(was)), image(was))
        delta = MetadataDelta(image(was), image(now), {b"t" * 16: None}, {}, {}, {}, {})
        await seen.publish(delta, image(now))
        assert (seen.from_eligible, seen.unclean) == counts
        late = ElectionCounts()
        await late.publish(delta, image(now))  # elections before it began
        assert (late.from_eligible, late.unclean) == (0, 0)

    trio.run(main)


@pytest.mark.slow
@in_trio
async def test_many_partitions_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        client = await served.connect()
        for number in range(3):
            assert (await client.create(f"topic-{number}", 1000)).error_code == 0
        await scrape(served)
        steps = Steps(lambda task: "prometheus" in task)
        with steps.watching():
            samples = await scrape(served)
        assert value(samples, "kafka_server_replicamanager_partitioncount") == 3000
        assert len(steps) > 12
        assert steps.most_lines < steps.all_lines * 0.3


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), b"404"),
        (get("/metrics?name=x"), b"200"),
        (get(method="POST"), b"405"),
        (get(method="HEAD"), b"200"),
        (b"\x00\x00\x00\x10garbage\r\n\r\n", b""),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 20_000, b""),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
    ],
)
@in_trio
async def test_what_is_not_asked_for_well(tmp_path: Path, request_: bytes, status: bytes) -> None:
    async with serving(tmp_path, metrics=True) as served:
        with trio.fail_after(PATIENCE_S):
            try:
                answer = await exchange(served, request_)
            except OSError:
                answer = b""
        assert answer[9:12] == status
        assert (b"metaquorum_build_info" in answer) == (
            request_.startswith(b"GET") and status == b"200"
        )
        assert await scrape(served)


@given(st.text(), st.text())
def test_any_text_can_be_a_label(one: str, other: str) -> None:
    page = Page()
    page.add("metaquorum_build_info", 1, version=one, cluster_id=other)
    text = b"".join(page.texts()).decode()
    (sample,) = read(text)
    printable = {key: v.encode(errors="replace").decode() for key, v in (("a", one), ("b", other))}
    assert dict(sample[1]) == {"version": printable["a"], "cluster_id": printable["b"]}


def test_no_labels_are_no_braces() -> None:
    assert labels([]) == ""


@given(st.lists(st.floats(1e-6, 900), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_never_too_small_and_hardly_too_large(
    seconds: list[float], share: float
) -> None:
    times = Histogram()
    for each in seconds:
        times.record(each, 0.0)
    rank = next(n for n in range(1, len(seconds) + 1) if n >= share * len(seconds))
    exact = sorted(seconds)[rank - 1]
    (found,) = times.quantiles([share], 1.0)
    assert exact <= found <= exact * GROWTH * 1.001
    assert times.count == len(seconds)


def test_what_is_long_ago_is_not_among_the_quantiles() -> None:
    times = Histogram()
    times.record(5.0, 0.0)
    times.record(1.0, TURN_S + 1)
    assert times.quantiles([1.0], TURN_S + 2)[0] >= 5
    assert times.quantiles([1.0], 2 * TURN_S + 2)[0] < 2
    assert times.quantiles([1.0], 9 * TURN_S) == [0.0]
    assert (times.count, times.total_s) == (2, 6.0)


@in_trio
async def test_the_space_of_each_log_directory_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=True) as served:
        samples = await scrape(served)
        (path,) = [log_dir.path for log_dir in served.worker.replica_manager.log_dirs.online]
        free, total = (
            value(samples, f"metaquorum_log_dir_{name}_bytes", directory=path)
            for name in ("free", "total")
        )
        assert 0 < free < total
