"""Admin requests about topics, configs, the cluster and its coordinators."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from metaquorum.wire.messages.api_versions import ApiVersionsRequest
from metaquorum.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from metaquorum.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from metaquorum.wire.messages.describe_cluster import DescribeClusterRequest
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.types import ZERO_UUID
from metaquorum.wire.protocol.apis import APIS, ApiKey
from tests.dataplane.handlers.test_produce import producer_id_from
from tests.dataplane.serving import RawClient, batch_of, in_trio, serving

TOPIC, BROKER = 2, 4


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> CreatableTopic:
    configs = more.pop("configs", {})
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
        **more,
    )


async def create(
    client: RawClient, *topics: CreatableTopic, version: int | None = None, **options: Any
) -> list[Any]:
    asked = CreateTopicsRequest(topics=list(topics), **({"timeout_ms": 20_000} | options))
    return list((await client.call(ApiKey.CREATE_TOPICS, asked, version)).topics)


async def names(client: RawClient) -> set[str]:
    answer = await client.call(ApiKey.METADATA, MetadataRequest(topics=None))
    return {topic.name for topic in answer.topics}


@in_trio
async def test_topics_are_made_in_every_version(tmp_path: Path) -> None:
    async with serving(tmp_path, num_partitions=4) as served:
        client = await served.connect()
        api = APIS[ApiKey.CREATE_TOPICS]
        for version in range(api.min_version, api.max_version + 1):
            (row,) = await create(client, topic(f"v{version}", 3), version=version)
            assert (row.error_code, row.name) == (0, f"v{version}")
            if version >= 5:
                assert (row.num_partitions, row.replication_factor) == (3, 1)
                assert {c.name: c.value for c in row.configs}["retention.ms"] == "604800000"
            if version >= 7:
                assert row.topic_id != ZERO_UUID
        (row,) = await create(client, topic("default", -1, -1))
        assert (row.num_partitions, row.replication_factor) == (4, 1)
        assert await names(client) == {f"v{v}" for v in range(2, 8)} | {"default"}


@in_trio
async def test_a_topic_that_is_only_validated_is_not_made(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        rows = await create(client, topic("a"), topic("no good"), validate_only=True)
        assert [row.error_code for row in rows] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert rows[0].topic_id == ZERO_UUID
        assert await names(client) == set()


ASSIGNED = [
    CreatableReplicaAssignment(partition_index=0, broker_ids=[1]),
    CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("have_it"), ErrorCode.INVALID_TOPIC_EXCEPTION),  # collides with have.it
        (topic("have.it"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", configs={"retention.ms": "-2"}), ErrorCode.INVALID_CONFIG),
        (topic("t", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (topic("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (topic("t", assignments=ASSIGNED), ErrorCode.INVALID_REQUEST),
        (topic("t", -1, -1, assignments=ASSIGNED[1:]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            topic("t", -1, -1, assignments=[ASSIGNED[0], ASSIGNED[0]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic(
                "t",
                -1,
                -1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[9])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_alone(
    tmp_path: Path, spec: CreatableTopic, error: ErrorCode
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            await create(client, topic("have.it"))
            rows = await create(client, spec, topic("other"))
            by_name = {row.name: row for row in rows}
            assert by_name[spec.name].error_code == error
            assert by_name[spec.name].error_message
            assert by_name["other"].error_code == 0

    test()


@in_trio
async def test_given_assignments_are_followed_and_names_come_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        (row,) = await create(client, topic("t", -1, -1, assignments=ASSIGNED))
        assert (row.error_code, row.num_partitions) == (0, 2)
        twice = [topic("twice"), topic("twice", 3)]
        rows = await create(client, *twice)
        assert [row.error_code for row in rows] == [ErrorCode.INVALID_REQUEST]
        odd = topic("odd", assignments=[ASSIGNED[0], ASSIGNED[0]])
        rows = await create(client, odd, topic("odd"))
        assert [row.error_code for row in rows] == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        assert await names(client) == {"t"}


@in_trio
async def test_a_request_without_time_is_answered_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        for timeout in (0, -1, -(2**31)):
            (row,) = await create(client, topic("t"), timeout_ms=timeout)
            assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        (row,) = await create(client, topic("u"), timeout_ms=2**31 - 1)
        assert row.error_code == 0


@in_trio
async def test_topics_are_deleted_by_name_and_by_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        made = {row.name: row.topic_id for row in await create(client, topic("a"), topic("b"))}

        async def delete(*states: DeleteTopicState) -> list[tuple[str | None, bytes, int]]:
            asked = DeleteTopicsRequest(topics=list(states), timeout_ms=20_000)
            answer = await client.call(ApiKey.DELETE_TOPICS, asked, 6)
            return [(row.name, row.topic_id, row.error_code) for row in answer.responses]

        unknown = uuid.uuid4().bytes
        rows = await delete(
            DeleteTopicState(name="a"),
            DeleteTopicState(name=None, topic_id=made["b"]),
            DeleteTopicState(name="absent"),
            DeleteTopicState(name=None, topic_id=unknown),
        )
        assert rows == [
            ("a", made["a"], 0),
            ("b", made["b"], 0),
            ("absent", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        assert await names(client) == set()
        api = APIS[ApiKey.DELETE_TOPICS]
        for version in range(api.min_version, 6):
            await create(client, topic("c"))
            for named, code in ((["c", "c"], ErrorCode.INVALID_REQUEST), (["c"], ErrorCode.NONE)):
                asked = DeleteTopicsRequest(topic_names=named, timeout_ms=20_000)
                answer = await client.call(ApiKey.DELETE_TOPICS, asked, version)
                assert [row.error_code for row in answer.responses] == [code]


@in_trio
async def test_a_deletion_that_contradicts_itself_deletes_nothing(tmp_path: Path) -> None:
    """The id is that of an earlier topic of the name, for example. Texts: Apache Kafka 4.3."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        (made,) = await create(client, topic("a"))
        stale = uuid.uuid4().bytes
        by_name = DeleteTopicState(name="a")
        by_id = DeleteTopicState(name=None, topic_id=made.topic_id)
        for states, texts in (
            ([DeleteTopicState(name="a", topic_id=stale)], {"both topic name and topic id"}),
            ([DeleteTopicState(name="a", topic_id=made.topic_id)], {"both topic name"}),
            ([DeleteTopicState(name=None, topic_id=ZERO_UUID)], {"Neither topic name nor id"}),
            ([by_name, by_name], {"Duplicate topic name."}),
            ([by_id, by_id, by_id], {"Duplicate topic id."}),
            ([by_name, by_id], {"Duplicate topic id.", "maps to an ID that was already supplied"}),
        ):
            asked = DeleteTopicsRequest(topics=states, timeout_ms=20_000)
            rows = (await client.call(ApiKey.DELETE_TOPICS, asked)).responses
            assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST}
            assert len(rows) == len(texts)
            assert all(any(text in row.error_message for row in rows) for text in texts), rows
            assert await names(client) == {"a"}
        asked = DeleteTopicsRequest(topics=[by_name], timeout_ms=20_000)
        (row,) = (await client.call(ApiKey.DELETE_TOPICS, asked)).responses
        assert row.error_code == 0


@in_trio
async def test_deletion_can_be_forbidden(tmp_path: Path) -> None:
    async with serving(tmp_path, delete_topic_enable="false") as served:
        client = await served.connect()
        await create(client, topic("a"))
        assert await client.delete("a") == ErrorCode.TOPIC_DELETION_DISABLED
        assert await names(client) == {"a"}


@in_trio
async def test_metadata_shows_topics_by_name_by_id_and_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        (made,) = await create(client, topic("t", 2))
        await create(client, topic("u"))
        api = APIS[ApiKey.METADATA]
        for version in range(api.min_version, api.max_version + 1):
            everything = MetadataRequest(topics=None if version else [])
            answer = await client.call(ApiKey.METADATA, everything, version)
            assert {t.name for t in answer.topics} == {"t", "u"}
            assert [(b.node_id, b.host) for b in answer.brokers] == [(1, "127.0.0.1")]
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
            (row,) = (await client.call(ApiKey.METADATA, asked, version)).topics
            assert [(p.leader_id, p.replica_nodes, p.isr_nodes) for p in row.partitions] == [
                (1, [1], [1])
            ] * 2
            if version >= 1:
                nothing = await client.call(ApiKey.METADATA, MetadataRequest(topics=[]), version)
                assert nothing.topics == []
                assert nothing.controller_id == 1
        for topic_id, error in ((made.topic_id, 0), (bytes(15) + b"x", ErrorCode.UNKNOWN_TOPIC_ID)):
            by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)])
            (row,) = (await client.call(ApiKey.METADATA, by_id)).topics
            assert row.error_code == error
            assert row.topic_id == topic_id


@in_trio
async def test_a_topic_id_has_precedence_and_works_from_version_12_on(tmp_path: Path) -> None:
    """Versions 10 and 11 have ids that Kafka refuses, and no null for the name in a response."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        (made,) = await create(client, topic("t"))
        unknown, refused = bytes(15) + b"x", ErrorCode.INVALID_REQUEST
        missing = ErrorCode.UNKNOWN_TOPIC_ID
        for version in range(10, APIS[ApiKey.METADATA].max_version + 1):
            for name, topic_id, row in (
                (None, unknown, ("", refused) if version < 12 else (None, missing)),
                (None, ZERO_UUID, ("", refused) if version < 12 else (None, missing)),
                (None, made.topic_id, ("", refused) if version < 12 else ("t", 0)),
                ("t", unknown, ("t", refused) if version < 12 else (None, missing)),
                ("new", unknown, ("new", refused) if version < 12 else (None, missing)),
                ("t", made.topic_id, ("t", refused) if version < 12 else ("t", 0)),
                ("t", ZERO_UUID, ("t", 0)),
            ):
                asked = MetadataRequest(
                    topics=[MetadataRequestTopic(name=name, topic_id=topic_id)],
                    allow_auto_topic_creation=True,
                )
                (found,) = (await client.call(ApiKey.METADATA, asked, version)).topics
                assert (found.name, found.error_code) == row, (version, name, topic_id)
        assert await names(client) == {"t"}


async def described(client: RawClient, kind: int, name: str, **options: Any) -> Any:
    keys = options.pop("keys", None)
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    message = DescribeConfigsRequest(resources=[asked], **options)
    return (await client.call(ApiKey.DESCRIBE_CONFIGS, message)).results[0]


@in_trio
async def test_configs_are_described_with_their_source(tmp_path: Path) -> None:
    async with serving(tmp_path, log_retention_hours=5, node_id=1) as served:
        client = await served.connect()
        await create(client, topic("t", configs={"segment.ms": "5000"}))
        result = await described(client, TOPIC, "t", include_synonyms=True)
        rows = {row.name: row for row in result.configs}
        assert (rows["segment.ms"].value, rows["segment.ms"].config_source) == ("5000", 1)
        assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("18000000", 4)
        assert rows["retention.ms"].synonyms[0].name == "log.retention.hours"
        assert rows["segment.bytes"].config_source == 5
        result = await described(client, TOPIC, "t", keys=["retention.ms"])
        assert [row.name for row in result.configs] == ["retention.ms"]
        result = await described(client, BROKER, "1", include_documentation=True)
        rows = {row.name: row for row in result.configs}
        assert rows["node.id"].value == "1"
        assert rows["log.retention.hours"].value == "5"
        assert all(row.documentation for row in rows.values())


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no good", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
        (-128, "", ErrorCode.INVALID_REQUEST),
        (127, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_configs_of_what_is_not_there_are_an_error(
    tmp_path: Path, kind: int, name: str, error: ErrorCode
) -> None:
    @in_trio
    async def test() -> None:
        async with serving(tmp_path) as served:
            client = await served.connect()
            result = await described(client, kind, name)
            assert result.error_code == error
            assert (result.resource_type, result.resource_name) == (kind, name)

    test()


@in_trio
async def test_the_cluster_is_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        for version in range(3):
            answer = await client.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), version)
            assert (answer.error_code, answer.controller_id) == (0, 1)
            assert answer.cluster_id == served.node.cluster_id
            (broker,) = answer.brokers
            assert (broker.host, broker.port) == served.node.address
        for kind in (2, 0, -128, 127):
            asked = DescribeClusterRequest(endpoint_type=kind)
            answer = await client.call(ApiKey.DESCRIBE_CLUSTER, asked)
            assert answer.error_code != 0


@in_trio
async def test_api_versions_say_what_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        for version in range(5):
            asked = ApiVersionsRequest(client_software_name="a", client_software_version="1.0")
            answer = await client.call(ApiKey.API_VERSIONS, asked, version)
            rows = {r.api_key: (r.min_version, r.max_version) for r in answer.api_keys}
            assert rows == {a.key: (a.min_version, a.max_version) for a in APIS.values()}
        for bad in ("", "-", "a b", "x\ny", "a" * 30_000 + "-"):
            asked = ApiVersionsRequest(client_software_name=bad, client_software_version="1")
            answer = await client.call(ApiKey.API_VERSIONS, asked)
            assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.slow
@in_trio
async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        (made,) = await create(client, topic("t", 3, configs={"segment.ms": "5000"}))
        for partition in range(3):
            await client.produce("t", batch_of(b"%d" % partition), partition=partition)
        cluster = served.node.cluster_id
        ids = {await producer_id_from(client) for _ in range(3)}
        assert len(ids) == 3
    for restart in range(1, 4):
        async with serving(tmp_path) as served:
            client = await served.connect()
            assert served.node.cluster_id == cluster
            answer = await client.call(ApiKey.METADATA, MetadataRequest(topics=None))
            (row,) = answer.topics
            assert (row.name, row.topic_id) == ("t", made.topic_id)
            assert {p.leader_epoch for p in row.partitions} == {2 * restart}
            assert await client.values("t") == [b"0"]
            config = await described(client, TOPIC, "t", keys=["segment.ms"])
            assert config.configs[0].value == "5000"
            new = await producer_id_from(client)
            assert new not in ids
            ids.add(new)
