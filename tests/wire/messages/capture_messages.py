"""Capture `golden_messages/`: the responses of a real Apache Kafka to each API in each version.

    python -m tests.wire.messages.capture_messages --bootstrap HOST:PORT [--only NAME ...]

Writes one JSON file for each API: a list of exchanges, each with the version, and the request and
response in hex (whole frames without their sizes). Creates and deletes topics named `golden-...`.
"""

import argparse
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaquorum.wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    expire_delegation_token,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    unregister_broker,
    update_features,
)
from metaquorum.wire.protocol.apis import APIS, ApiKey
from metaquorum.wire.protocol.frames import FrameBuffer
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.records.records import Record, encode_batch
from metaquorum.wire.schema.message import Message
from tests.wire.messages.capture_groups import ask_groups
from tests.wire.messages.capture_transactions import ask_transactions

GOLDEN = Path(__file__).resolve().parent / "golden_messages"
TOPIC = "golden-topic"
COMPACTED = "golden-compacted"
MISSING = "golden-missing"
UNKNOWN_VERSION = 90
MAX_FRAME_BYTES = 1 << 20


class Peer:
    """A connection to the node, with all exchanges on it."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)
        self.frames = FrameBuffer(MAX_FRAME_BYTES)
        self.exchanges: dict[int, list[dict[str, Any]]] = {key: [] for key in APIS}
        self.topic_id = self.compacted_id = bytes(16)

    def ask(self, key: ApiKey, version: int, message: Message) -> Any:
        request = encode_request(key, version, version + 1000, "capture", message)
        response = self.exchange(key, version, request)
        return decode_response(key, version, memoryview(response))[1]

    def exchange(self, key: ApiKey, version: int, request: bytes) -> bytes:
        self.socket.sendall(request)
        while (frame := self.frames.next_frame()) is None:
            count = self.socket.recv_into(self.frames.writable())
            if not count:
                raise SystemExit(f"the node closed the connection on {key.name} v{version}")
            self.frames.received(count)
        response = bytes(frame)
        self.exchanges[key].append(
            {"version": version, "request": request[4:].hex(), "response": response.hex()}
        )
        return response


def versions(key: ApiKey) -> Iterator[int]:
    return iter(range(APIS[key].min_version, APIS[key].max_version + 1))


def ask_api_versions(peer: Peer) -> None:
    request = api_versions.ApiVersionsRequest(
        client_software_name="metaquorum", client_software_version="1.0"
    )
    for version in versions(ApiKey.API_VERSIONS):
        peer.ask(ApiKey.API_VERSIONS, version, request)
    unknown = bytearray(encode_request(ApiKey.API_VERSIONS, 4, 1, "capture", request))
    struct.pack_into(">h", unknown, 6, UNKNOWN_VERSION)
    peer.exchange(ApiKey.API_VERSIONS, UNKNOWN_VERSION, bytes(unknown))


def make_topics(peer: Peer) -> None:
    compacted = create_topics.CreatableTopicConfig(name="cleanup.policy", value="compact")
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1),
            create_topics.CreatableTopic(
                name=COMPACTED, num_partitions=1, replication_factor=1, configs=[compacted]
            ),
        ]
    )
    ids = {t.name: t.topic_id for t in peer.ask(ApiKey.CREATE_TOPICS, 7, request).topics}
    peer.topic_id, peer.compacted_id = ids[TOPIC], ids[COMPACTED]
    while any(leads != 0 for leads in leaders(peer)):
        peer.exchanges[ApiKey.LIST_OFFSETS].clear()
        time.sleep(0.05)
    peer.exchanges[ApiKey.LIST_OFFSETS].clear()


def leaders(peer: Peer) -> list[int]:
    """Return 0 for each partition that has a leader, otherwise the error code."""
    topics = [
        list_offsets.ListOffsetsTopic(
            name=name, partitions=[list_offsets.ListOffsetsPartition(timestamp=-1)]
        )
        for name in (TOPIC, COMPACTED)
    ]
    request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
    answer = peer.ask(ApiKey.LIST_OFFSETS, 1, request)
    return [topic.partitions[0].error_code for topic in answer.topics]


def ask_metadata(peer: Peer) -> None:
    for version in versions(ApiKey.METADATA):
        names = [TOPIC] if version < 4 else [TOPIC, MISSING]
        topics = [metadata.MetadataRequestTopic(name=name) for name in names]
        peer.ask(
            ApiKey.METADATA,
            version,
            metadata.MetadataRequest(
                topics=topics,
                allow_auto_topic_creation=version < 4,
                include_cluster_authorized_operations=8 <= version <= 10,
                include_topic_authorized_operations=version >= 8,
            ),
        )
        if version >= 12:
            by_id = [
                metadata.MetadataRequestTopic(name=None, topic_id=topic_id)
                for topic_id in (peer.topic_id, b"no such topic id")
            ]
            peer.ask(ApiKey.METADATA, version, metadata.MetadataRequest(topics=by_id))
        everything = [] if version == 0 else None
        peer.ask(ApiKey.METADATA, version, metadata.MetadataRequest(topics=everything))


def ask_produce(peer: Peer) -> None:
    batch = encode_batch([Record(0, 1_700_000_000_000, b"key", b"value", ())])
    keyless = encode_batch([Record(0, 1_700_000_000_000, None, b"value", ())])
    for version in versions(ApiKey.PRODUCE):
        topics = [
            produce.TopicProduceData(
                name=name if version < 13 else "",
                topic_id=topic_id if version >= 13 else bytes(16),
                partition_data=[
                    produce.PartitionProduceData(index=0, records=batch),
                    produce.PartitionProduceData(index=9, records=batch),
                    produce.PartitionProduceData(index=1, records=batch),
                ],
            )
            for name, topic_id in ((TOPIC, peer.topic_id), (MISSING, b"no such topic id"))
        ]
        request = produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        peer.ask(ApiKey.PRODUCE, version, request)
        # A batch whose CRC is wrong, and one without a key, which a compacted topic refuses.
        damaged = produce.PartitionProduceData(index=0, records=batch[:-1] + b"\xff")
        refused = produce.PartitionProduceData(index=0, records=keyless)
        topics[0].partition_data = [damaged]
        topics[1].partition_data = [refused]
        if version < 13:
            topics[1].name = COMPACTED
        else:
            topics[1].topic_id = peer.compacted_id
        peer.ask(ApiKey.PRODUCE, version, request)


def ask_fetch(peer: Peer) -> None:
    for version in versions(ApiKey.FETCH):
        partitions = [
            fetch.FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=200,
                current_leader_epoch=0 if version >= 9 else -1,
            )
            for index, offset in ((0, 0), (1, 3), (0, 99), (7, 0))
        ]
        for isolation_level in (0, 1):
            topic = fetch.FetchTopic(
                topic=TOPIC if version < 13 else "",
                topic_id=peer.topic_id if version >= 13 else bytes(16),
                partitions=partitions[: 2 + 2 * isolation_level],
            )
            peer.ask(
                ApiKey.FETCH,
                version,
                fetch.FetchRequest(
                    max_wait_ms=10,
                    min_bytes=1,
                    max_bytes=100_000,
                    isolation_level=isolation_level,
                    topics=[topic],
                ),
            )


def ask_list_offsets(peer: Peer) -> None:
    for version in versions(ApiKey.LIST_OFFSETS):
        special = {1: (-1, -2), 7: (-1, -3), 8: (-4,), 9: (-5,), 11: (-6,)}
        timestamps = special.get(version, (-1, -2, 1_600_000_000_000))
        for timestamp in timestamps:
            partitions = [
                list_offsets.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                for index in (0, 9)
            ]
            topics = [list_offsets.ListOffsetsTopic(name=TOPIC, partitions=partitions)]
            request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
            if version >= 10:
                request.timeout_ms = 5_000
            peer.ask(ApiKey.LIST_OFFSETS, version, request)


def ask_offset_for_leader_epoch(peer: Peer) -> None:
    partitions = [
        offset_for_leader_epoch.OffsetForLeaderPartition(
            partition=index, current_leader_epoch=0, leader_epoch=0
        )
        for index in (0, 9)
    ]
    topics = [
        offset_for_leader_epoch.OffsetForLeaderTopic(topic=name, partitions=partitions)
        for name in (TOPIC, MISSING)
    ]
    for version in versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
        peer.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)


def ask_init_producer_id(peer: Peer) -> None:
    for version in versions(ApiKey.INIT_PRODUCER_ID):
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        peer.ask(ApiKey.INIT_PRODUCER_ID, version, request)
        request.transactional_id = ""  # rejected by Kafka
        peer.ask(ApiKey.INIT_PRODUCER_ID, version, request)


def ask_create_topics(peer: Peer) -> None:
    for version in versions(ApiKey.CREATE_TOPICS):
        config = create_topics.CreatableTopicConfig(name="retention.ms", value="1000")
        topics = [
            create_topics.CreatableTopic(
                name=f"golden-{version}", num_partitions=1, replication_factor=1, configs=[config]
            ),
            create_topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),
            create_topics.CreatableTopic(name="!", num_partitions=1, replication_factor=1),
            create_topics.CreatableTopic(
                name=f"golden-assigned-{version}",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[1]),
                    create_topics.CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
                ],
            ),
        ]
        request = create_topics.CreateTopicsRequest(topics=topics, timeout_ms=10_000)
        request.validate_only = True
        peer.ask(ApiKey.CREATE_TOPICS, version, request)
        request.validate_only = False
        peer.ask(ApiKey.CREATE_TOPICS, version, request)


def ask_delete_topics(peer: Peer) -> None:
    for version in versions(ApiKey.DELETE_TOPICS):
        names = [f"golden-{version + 1}", f"golden-assigned-{version + 1}", MISSING]
        if version < 6:
            request = delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
        else:
            states = [delete_topics.DeleteTopicState(name=name) for name in names]
            states.append(delete_topics.DeleteTopicState(topic_id=peer.topic_id))
            states.append(delete_topics.DeleteTopicState(topic_id=b"no such topic id"))
            request = delete_topics.DeleteTopicsRequest(topics=states, timeout_ms=10_000)
        peer.ask(ApiKey.DELETE_TOPICS, version, request)


def ask_describe_configs(peer: Peer) -> None:
    for version in versions(ApiKey.DESCRIBE_CONFIGS):
        for synonyms in (False, True):
            request = describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=2,
                        resource_name=COMPACTED,
                        configuration_keys=["cleanup.policy", "segment.bytes", "retention.ms"],
                    ),
                    describe_configs.DescribeConfigsResource(
                        resource_type=2, resource_name=MISSING, configuration_keys=None
                    ),
                ],
                include_synonyms=synonyms,
                include_documentation=synonyms and version >= 3,
            )
            peer.ask(ApiKey.DESCRIBE_CONFIGS, version, request)


def ask_describe_cluster(peer: Peer) -> None:
    for version in versions(ApiKey.DESCRIBE_CLUSTER):
        for included in (False, True):
            request = describe_cluster.DescribeClusterRequest(
                include_cluster_authorized_operations=included
            )
            request.include_fenced_brokers = included and version >= 2
            peer.ask(ApiKey.DESCRIBE_CLUSTER, version, request)
        if version >= 1:
            request = describe_cluster.DescribeClusterRequest(endpoint_type=2)
            peer.ask(ApiKey.DESCRIBE_CLUSTER, version, request)


def ask_find_coordinator(peer: Peer) -> None:
    for version in versions(ApiKey.FIND_COORDINATOR):
        for key_type in (0, 1) if version else (0,):
            request = find_coordinator.FindCoordinatorRequest(key_type=key_type)
            if version < 4:
                request.key = "golden-group"
            else:
                request.coordinator_keys = ["golden-group", ""]
            peer.ask(ApiKey.FIND_COORDINATOR, version, request)


def ask_offset_fetch(peer: Peer) -> None:
    """Request offsets of a group without commits: of some partitions, and of all."""
    for version in versions(ApiKey.OFFSET_FETCH):
        for some in (True, False) if version >= 2 else (True,):
            request = offset_fetch.OffsetFetchRequest()
            if version < 8:
                topic = offset_fetch.OffsetFetchRequestTopic(
                    name="golden-a", partition_indexes=[0, 1]
                )
                request.group_id, request.topics = "golden-group", [topic] if some else None
            else:
                topics = offset_fetch.OffsetFetchRequestTopics(
                    name="golden-a" if version < 10 else "", partition_indexes=[0, 1]
                )
                request.groups = [
                    offset_fetch.OffsetFetchRequestGroup(
                        group_id="golden-group", topics=[topics] if some else None
                    )
                ]
            peer.ask(ApiKey.OFFSET_FETCH, version, request)


def ask_alter_configs(peer: Peer) -> None:
    specs = [
        (2, TOPIC, {"retention.ms": "86400000"}),
        (2, MISSING, {"retention.ms": "1"}),
        (2, COMPACTED, {"no.such.config": "1"}),
        (4, "1", {"node.id": "2"}),
    ]
    resources = [
        alter_configs.AlterConfigsResource(
            resource_type=type_,
            resource_name=name,
            configs=[alter_configs.AlterableConfig(name=k, value=v) for k, v in configs.items()],
        )
        for type_, name, configs in specs
    ]
    for version in versions(ApiKey.ALTER_CONFIGS):
        request = alter_configs.AlterConfigsRequest(resources=resources, validate_only=version == 1)
        peer.ask(ApiKey.ALTER_CONFIGS, version, request)


def ask_incremental_alter_configs(peer: Peer) -> None:
    specs: list[tuple[int, str, list[tuple[str, int, str | None]]]] = [
        (2, TOPIC, [("retention.ms", 0, "5000"), ("cleanup.policy", 2, "compact")]),
        (2, TOPIC, [("retention.ms", 1, None), ("cleanup.policy", 3, "compact")]),
        (2, TOPIC, [("retention.ms", 2, "5000")]),
        (2, TOPIC, [("retention.ms", 0, "soon")]),
        (2, TOPIC, [("retention.ms", 0, None)]),
        (4, "1", [("node.id", 0, "2"), ("log.retention.ms", 0, "5000")]),
        (4, "7", [("log.retention.ms", 0, "5000")]),
        (4, "", [("log.retention.ms", 0, "604800000")]),
        (4, "", [("log.retention.ms", 1, None)]),
    ]
    for version in versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        for type_, name, configs in specs:
            resource = incremental_alter_configs.AlterConfigsResource(
                resource_type=type_,
                resource_name=name,
                configs=[
                    incremental_alter_configs.AlterableConfig(
                        name=config, config_operation=op, value=value
                    )
                    for config, op, value in configs
                ],
            )
            request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
            peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request)


def ask_list_config_resources(peer: Peer) -> None:
    for version in versions(ApiKey.LIST_CONFIG_RESOURCES):
        for types in ((), (2, 4), (99,)) if version else ((),):
            request = list_config_resources.ListConfigResourcesRequest()
            request.resource_types = list(types)
            peer.ask(ApiKey.LIST_CONFIG_RESOURCES, version, request)


def ask_create_partitions(peer: Peer) -> None:
    for version in versions(ApiKey.CREATE_PARTITIONS):
        count = 3 + version
        specs: list[tuple[str, int, list[list[int]] | None]] = [
            (TOPIC, count, None if version % 2 else [[1]]),
            (COMPACTED, 1, None),
            (MISSING, 2, None),
        ]
        topics = [
            create_partitions.CreatePartitionsTopic(
                name=name,
                count=wanted,
                assignments=assigned
                and [create_partitions.CreatePartitionsAssignment(broker_ids=a) for a in assigned],
            )
            for name, wanted, assigned in specs
        ]
        for validate_only in (True, False):
            request = create_partitions.CreatePartitionsRequest(
                topics=topics, timeout_ms=10_000, validate_only=validate_only
            )
            peer.ask(ApiKey.CREATE_PARTITIONS, version, request)


def ask_delete_records(peer: Peer) -> None:
    for version in versions(ApiKey.DELETE_RECORDS):
        specs = [(TOPIC, (0, 1 + version)), (TOPIC, (1, -1)), (TOPIC, (0, 10_000))]
        specs += [(MISSING, (0, 0)), (COMPACTED, (0, 0))]
        for name, (index, offset) in specs:
            partition = delete_records.DeleteRecordsPartition(partition_index=index, offset=offset)
            topic = delete_records.DeleteRecordsTopic(name=name, partitions=[partition])
            request = delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)
            peer.ask(ApiKey.DELETE_RECORDS, version, request)


def ask_describe_topic_partitions(peer: Peer) -> None:
    names = [describe_topic_partitions.TopicRequest(name=n) for n in (TOPIC, MISSING, COMPACTED)]
    cursor = describe_topic_partitions.Cursor(topic_name=TOPIC, partition_index=1)
    for topics, limit, start in (
        (names, 2000, None),
        (names, 2, None),
        (names, 2, cursor),
        ([], 1, cursor),
        (names[1:], 1, cursor),
    ):
        request = describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=topics, response_partition_limit=limit, cursor=start
        )
        peer.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)


def ask_describe_log_dirs(peer: Peer) -> None:
    topics = [
        describe_log_dirs.DescribableLogDirTopic(topic=name, partitions=[0, 9])
        for name in (TOPIC, MISSING)
    ]
    for version in versions(ApiKey.DESCRIBE_LOG_DIRS):
        for asked in (topics, []):
            request = describe_log_dirs.DescribeLogDirsRequest(topics=asked)
            peer.ask(ApiKey.DESCRIBE_LOG_DIRS, version, request)


def ask_describe_producers(peer: Peer) -> None:
    numbered = encode_batch(
        [Record(0, 1_700_000_000_000, b"key", b"value", ())],
        producer_id=4711,
        producer_epoch=1,
        base_sequence=0,
    )
    data = produce.PartitionProduceData(index=1, records=numbered)
    topic = produce.TopicProduceData(name=TOPIC, partition_data=[data])
    peer.ask(ApiKey.PRODUCE, 9, produce.ProduceRequest(acks=-1, topic_data=[topic]))
    topics = [
        describe_producers.TopicRequest(name=name, partition_indexes=[1, 9])
        for name in (TOPIC, MISSING)
    ]
    request = describe_producers.DescribeProducersRequest(topics=topics)
    peer.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)


def ask_acls(peer: Peer) -> None:
    for version in versions(ApiKey.DESCRIBE_ACLS):
        anything = describe_acls.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
        peer.ask(ApiKey.DESCRIBE_ACLS, version, anything)
        creation = create_acls.AclCreation(
            resource_type=2,
            resource_name=TOPIC,
            principal="User:golden",
            host="*",
            operation=3,
            permission_type=3,
        )
        request = create_acls.CreateAclsRequest(creations=[creation])
        peer.ask(ApiKey.CREATE_ACLS, version, request)
        matching = delete_acls.DeleteAclsFilter(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
        peer.ask(ApiKey.DELETE_ACLS, version, delete_acls.DeleteAclsRequest(filters=[matching]))


def ask_sasl(peer: Peer) -> None:
    """Capture the responses of a listener without SASL."""
    for version in versions(ApiKey.SASL_HANDSHAKE):
        peer.ask(
            ApiKey.SASL_HANDSHAKE, version, sasl_handshake.SaslHandshakeRequest(mechanism="PLAIN")
        )
    for version in versions(ApiKey.SASL_AUTHENTICATE):
        asked = sasl_authenticate.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
        peer.ask(ApiKey.SASL_AUTHENTICATE, version, asked)


# (user, mechanism) to be deleted; (user, mechanism, iterations) to be set.
SCRAM_CHANGES: tuple[tuple[list[tuple[str, int]], list[tuple[str, int, int]]], ...] = (
    ([("nobody", 1), ("other", 9)], []),
    ([("", 1)], [("", 1, 4096), ("few", 1, 4095), ("many", 2, 16_385), ("what", 9, 4096)]),
    ([("zero", 0)], [("none", 0, 4096)]),
    ([], [("alice", 1, 4096), ("bob", 1, 16_384)]),
    ([], [("alice", 2, 8192)]),
    ([], [("alice", 1, 5000), ("alice", 1, 6000), ("carol", 1, 4096)]),
    ([("alice", 1)], [("alice", 1, 5000)]),
    ([("alice", 1), ("alice", 1)], []),
    ([("alice", 1), ("bob", 2)], []),
    ([("alice", 2), ("bob", 1), ("carol", 1)], []),
)


def ask_scram(peer: Peer) -> None:
    describe_scram(peer)
    for deleted, upserted in SCRAM_CHANGES:
        deletions = [
            alter_user_scram_credentials.ScramCredentialDeletion(name=name, mechanism=mechanism)
            for name, mechanism in deleted
        ]
        upsertions = [
            alter_user_scram_credentials.ScramCredentialUpsertion(
                name=name,
                mechanism=mechanism,
                iterations=iterations,
                salt=b"a salt",
                salted_password=bytes(64 if mechanism == 2 else 32),
            )
            for name, mechanism, iterations in upserted
        ]
        request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=deletions, upsertions=upsertions
        )
        peer.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        time.sleep(0.3)  # Kafka answers before the change is visible
        describe_scram(peer)


def describe_scram(peer: Peer) -> None:
    for names in (None, [], ["nobody"], ["nobody", "nobody", "alice"]):
        users = names and [describe_user_scram_credentials.UserName(name=name) for name in names]
        asked = describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=users)
        peer.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, asked)


def ask_describe_quorum(peer: Peer) -> None:
    for version in versions(ApiKey.DESCRIBE_QUORUM):
        for name in ("__cluster_metadata", TOPIC):
            topic = describe_quorum.DescribeQuorumTopic(
                topic_name=name, partitions=[describe_quorum.DescribeQuorumPartition()]
            )
            request = describe_quorum.DescribeQuorumRequest(topics=[topic])
            peer.ask(ApiKey.DESCRIBE_QUORUM, version, request)


def ask_update_features(peer: Peer) -> None:
    for version in versions(ApiKey.UPDATE_FEATURES):
        for level in (1, 99):
            update = update_features.FeatureUpdateKey(
                feature="transaction.version", max_version_level=level, upgrade_type=1
            )
            request = update_features.UpdateFeaturesRequest(
                feature_updates=[update], validate_only=version > 0
            )
            peer.ask(ApiKey.UPDATE_FEATURES, version, request)


def ask_elect_leaders(peer: Peer) -> None:
    for version in versions(ApiKey.ELECT_LEADERS):
        for name in (TOPIC, MISSING, None):
            request = elect_leaders.ElectLeadersRequest(
                election_type=1 if version and name == TOPIC else 0,
                topic_partitions=name
                and [elect_leaders.TopicPartitions(topic=name, partitions=[0, 1])],
                timeout_ms=5000,
            )
            peer.ask(ApiKey.ELECT_LEADERS, version, request)


def ask_alter_replica_log_dirs(peer: Peer) -> None:
    request = describe_log_dirs.DescribeLogDirsRequest(topics=[])
    described = peer.ask(ApiKey.DESCRIBE_LOG_DIRS, 1, request)
    for version in versions(ApiKey.ALTER_REPLICA_LOG_DIRS):
        for path in (*(result.log_dir for result in described.results), "/golden/missing"):
            topics = [
                alter_replica_log_dirs.AlterReplicaLogDirTopic(name=name, partitions=[0, 99])
                for name in (TOPIC, MISSING)
            ]
            asked = alter_replica_log_dirs.AlterReplicaLogDir(path=path, topics=topics)
            peer.ask(
                ApiKey.ALTER_REPLICA_LOG_DIRS,
                version,
                alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=[asked]),
            )


def ask_reassignments(peer: Peer) -> None:
    described = peer.ask(ApiKey.DESCRIBE_CLUSTER, 0, describe_cluster.DescribeClusterRequest())
    (node_id,) = [broker.broker_id for broker in described.brokers]
    specs: list[tuple[str, int, list[int] | None]] = [
        (TOPIC, 0, [node_id]),
        (TOPIC, 0, None),
        (TOPIC, 1, []),
        (TOPIC, 1, [99]),
        (TOPIC, 1, [node_id, node_id]),
        (TOPIC, 99, [node_id]),
        (MISSING, 0, [node_id]),
    ]
    topics = [
        alter_partition_reassignments.ReassignableTopic(
            name=name,
            partitions=[
                alter_partition_reassignments.ReassignablePartition(
                    partition_index=index, replicas=replicas
                )
            ],
        )
        for name, index, replicas in specs
    ]
    for version in versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS):
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            timeout_ms=5000, allow_replication_factor_change=not version, topics=topics
        )
        peer.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, request)
    for version in versions(ApiKey.LIST_PARTITION_REASSIGNMENTS):
        for name in (TOPIC, MISSING, None):
            asked = name and [
                list_partition_reassignments.ListPartitionReassignmentsTopics(
                    name=name, partition_indexes=[0, 1]
                )
            ]
            peer.ask(
                ApiKey.LIST_PARTITION_REASSIGNMENTS,
                version,
                list_partition_reassignments.ListPartitionReassignmentsRequest(topics=asked),
            )


QUOTA_ENTITIES: list[list[tuple[str, str | None]]] = [
    [("user", "golden-user")],
    [("user", "golden-user"), ("client-id", None)],
    [("client-id", "golden-client")],
    [("client-id", "")],
    [("ip", "127.0.0.9")],
    [("ip", None)],
    [("ip", "golden host")],
    [("ip", "127.0.0.9"), ("user", "golden-user")],
    [("flavour", "golden")],
    [],
]
QUOTA_OPS = [
    {"key": "producer_byte_rate", "value": 1000.0},
    {"key": "connection_creation_rate", "value": 1000.0},
    {"key": "request_percentage", "value": 12.5},
    {"key": "consumer_byte_rate", "value": 12.5},
    {"key": "consumer_byte_rate", "value": -1.0},
    {"key": "consumer_byte_rate", "value": 1e30},
    {"key": "connection_creation_rate", "value": 3e9},
    {"key": "nonsense", "value": 1.0},
]
QUOTA_FILTERS: list[list[tuple[str, int, str | None]]] = [
    [],
    [("user", 0, "golden-user")],
    [("client-id", 1, None)],
    [("user", 2, None), ("client-id", 2, None)],
    [("ip", 2, None)],
    [("ip", 2, None), ("user", 2, None)],
    [("user", 2, None), ("user", 2, None)],
    [("flavour", 0, "golden")],
    [("", 0, "golden")],
    [("user", 0, None)],
    [("user", 1, "golden-user")],
    [("user", 2, "golden-user")],
    [("user", 7, None)],
]


def ask_client_quotas(peer: Peer) -> None:
    for version in versions(ApiKey.ALTER_CLIENT_QUOTAS):
        for remove in (False, True):
            for op in QUOTA_OPS:
                entries = [
                    alter_client_quotas.EntryData(
                        entity=[
                            alter_client_quotas.EntityData(entity_type=kind, entity_name=name)
                            for kind, name in entity
                        ],
                        ops=[alter_client_quotas.OpData(**op, remove=remove)],
                    )
                    for entity in QUOTA_ENTITIES
                ]
                for validate_only in (True, False):
                    request = alter_client_quotas.AlterClientQuotasRequest(
                        entries=entries, validate_only=validate_only
                    )
                    peer.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, request)
            time.sleep(0.5)  # wait until the broker has followed its controller
            describe_quotas(peer, version)


def describe_quotas(peer: Peer, version: int) -> None:
    for parts in QUOTA_FILTERS:
        for strict in (False, True):
            components = [
                describe_client_quotas.ComponentData(entity_type=kind, match_type=how, match=name)
                for kind, how, name in parts
            ]
            request = describe_client_quotas.DescribeClientQuotasRequest(
                components=components, strict=strict
            )
            peer.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)


def ask_delegation_tokens(peer: Peer) -> None:
    """Ask for tokens on a listener without authentication, where none are given."""
    renewer = create_delegation_token.CreatableRenewers(
        principal_type="User", principal_name="renewer"
    )
    for version in versions(ApiKey.CREATE_DELEGATION_TOKEN):
        for name in (None, "", "golden-user") if version >= 3 else (None,):
            created = create_delegation_token.CreateDelegationTokenRequest(
                owner_principal_type=None if name is None else "User",
                owner_principal_name=name,
                renewers=[renewer, renewer],
                max_lifetime_ms=-1,
            )
            peer.ask(ApiKey.CREATE_DELEGATION_TOKEN, version, created)
    owner = describe_delegation_token.DescribeDelegationTokenOwner(
        principal_type="User", principal_name="golden-user"
    )
    for version in versions(ApiKey.DESCRIBE_DELEGATION_TOKEN):
        for owners in (None, [], [owner, owner]):
            described = describe_delegation_token.DescribeDelegationTokenRequest(owners=owners)
            peer.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, described)
    for version in versions(ApiKey.RENEW_DELEGATION_TOKEN):
        renewed = renew_delegation_token.RenewDelegationTokenRequest(hmac=b"golden")
        peer.ask(ApiKey.RENEW_DELEGATION_TOKEN, version, renewed)
        expired = expire_delegation_token.ExpireDelegationTokenRequest(hmac=b"golden")
        peer.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, version, expired)


def ask_unregister_broker(peer: Peer) -> None:
    request = unregister_broker.UnregisterBrokerRequest(broker_id=4711)
    peer.ask(ApiKey.UNREGISTER_BROKER, 0, request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="write only these files")
    options = parser.parse_args()
    host, _, port = options.bootstrap.rpartition(":")
    peer = Peer(host, int(port))
    for step in (
        ask_api_versions,
        make_topics,
        ask_metadata,
        ask_produce,
        ask_fetch,
        ask_list_offsets,
        ask_offset_for_leader_epoch,
        ask_init_producer_id,
        ask_create_topics,
        ask_describe_cluster,
        ask_describe_configs,
        ask_find_coordinator,
        ask_offset_fetch,
        lambda peer: ask_groups(peer, TOPIC),
        lambda peer: ask_transactions(peer, TOPIC),
        ask_acls,
        ask_sasl,
        ask_scram,
        ask_alter_configs,
        ask_incremental_alter_configs,
        ask_list_config_resources,
        ask_delete_records,
        ask_create_partitions,
        ask_describe_topic_partitions,
        ask_describe_log_dirs,
        ask_describe_producers,
        ask_describe_quorum,
        ask_update_features,
        ask_elect_leaders,
        ask_alter_replica_log_dirs,
        ask_reassignments,
        ask_client_quotas,
        ask_delegation_tokens,
        ask_unregister_broker,
        ask_delete_topics,
    ):
        step(peer)
    GOLDEN.mkdir(exist_ok=True)
    for key, exchanges in peer.exchanges.items():
        name = ApiKey(key).name.lower()
        if options.only is None or name in options.only:
            text = json.dumps(exchanges, indent=1) + "\n"
            (GOLDEN / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
