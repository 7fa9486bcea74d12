"""Table of the supported APIs: keys, names and versions.

The ApiVersions response and the dispatcher both use this table, so every announced version works.
The message classes are imported at their first use; a test compares this table with the versions
that they declare.
"""

import importlib
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from metaquorum.wire.schema.message import Message

# First key of this project's own APIs. Kafka's keys are far below; its clients ignore unknown keys.
FIRST_OWN_KEY: Final = 10_000


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    DESCRIBE_WORKERS = 10_001
    DESCRIBE_TRUNCATIONS = 10_002
    DESCRIBE_REPLICAS = 10_003
    DESCRIBE_QUOTA_USE = 10_004
    AUTHENTICATE_REPLICA = 10_005
    DESCRIBE_UNREAD_RECORDS = 10_006
    DESCRIBE_GROUP_ACTIVITY = 10_007
    ALTER_WORKER = 10_008
    START_MOVE_PLAN = 10_010
    ALTER_MOVE_PLAN = 10_011
    DESCRIBE_MOVE_PLANS = 10_012
    DESCRIBE_COORDINATOR_MEMORY = 10_013
    REMOVE_TRANSACTIONAL_IDS = 10_014


class RequestHeader(NamedTuple):
    """Header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class Api:
    """One API: its supported versions (both ends included) and its message classes."""

    __slots__ = (
        "_classes",
        "flexible_from",
        "key",
        "max_version",
        "min_version",
        "name",
        "permissions",
    )

    def __init__(
        self,
        key: ApiKey,
        min_version: int,
        max_version: int,
        *,
        flexible_from: int,
        permissions: tuple[str, ...] = (),
    ) -> None:
        """Create a row; `permissions` are what the API will need once there are ACLs.

        Each is an operation and a type of resource, as in Kafka. They are not checked yet; rows of
        APIs that were older than groups have none yet.
        """
        self.key = key
        self.name = "".join(word.capitalize() for word in key.name.split("_"))
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_from = flexible_from
        self.permissions = permissions
        self._classes: tuple[type[Message], type[Message]] | None = None

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    @property
    def request(self) -> type[Message]:
        return (self._classes or self._load())[0]

    @property
    def response(self) -> type[Message]:
        return (self._classes or self._load())[1]

    def response_header_version(self, version: int) -> int:
        """Return 1 (with tagged fields) for a flexible version, else 0; always 0 for ApiVersions.

        A client that requests an unsupported version of ApiVersions must be able to decode the
        response (KIP-511).
        """
        return 1 if version >= self.flexible_from and self.key != ApiKey.API_VERSIONS else 0

    def _load(self) -> tuple[type[Message], type[Message]]:
        module: Any = importlib.import_module(f"metaquorum.wire.messages.{self.key.name.lower()}")
        request = getattr(module, self.name + "Request")
        response = getattr(module, self.name + "Response")
        self._classes = request, response
        return self._classes


_ROWS: Final = (
    Api(ApiKey.PRODUCE, 3, 13, flexible_from=9),
    Api(ApiKey.FETCH, 4, 18, flexible_from=12),
    Api(ApiKey.LIST_OFFSETS, 1, 11, flexible_from=6),
    Api(ApiKey.METADATA, 0, 13, flexible_from=9),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, flexible_from=8, permissions=("READ GROUP", "READ TOPIC")),
    Api(
        ApiKey.OFFSET_FETCH,
        1,
        10,
        flexible_from=6,
        permissions=("DESCRIBE GROUP", "DESCRIBE TOPIC"),
    ),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, flexible_from=3, permissions=("DESCRIBE GROUP",)),
    Api(ApiKey.JOIN_GROUP, 0, 9, flexible_from=6, permissions=("READ GROUP",)),
    Api(ApiKey.HEARTBEAT, 0, 4, flexible_from=4, permissions=("READ GROUP",)),
    Api(ApiKey.LEAVE_GROUP, 0, 5, flexible_from=4, permissions=("READ GROUP",)),
    Api(ApiKey.SYNC_GROUP, 0, 5, flexible_from=4, permissions=("READ GROUP",)),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, flexible_from=5, permissions=("DESCRIBE GROUP",)),
    Api(ApiKey.LIST_GROUPS, 0, 5, flexible_from=3, permissions=("DESCRIBE GROUP",)),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, flexible_from=2),
    Api(ApiKey.API_VERSIONS, 0, 4, flexible_from=3),
    Api(ApiKey.CREATE_TOPICS, 2, 7, flexible_from=5),
    Api(ApiKey.DELETE_TOPICS, 1, 6, flexible_from=4),
    Api(ApiKey.DELETE_RECORDS, 0, 2, flexible_from=2),
    Api(
        ApiKey.INIT_PRODUCER_ID,
        0,
        5,
        flexible_from=2,
        permissions=("WRITE TRANSACTIONAL_ID", "IDEMPOTENT_WRITE CLUSTER"),
    ),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, flexible_from=4),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        0,
        5,
        flexible_from=3,
        permissions=("WRITE TRANSACTIONAL_ID", "WRITE TOPIC", "CLUSTER_ACTION CLUSTER"),
    ),
    Api(
        ApiKey.ADD_OFFSETS_TO_TXN,
        0,
        4,
        flexible_from=3,
        permissions=("WRITE TRANSACTIONAL_ID", "READ GROUP"),
    ),
    Api(ApiKey.END_TXN, 0, 5, flexible_from=3, permissions=("WRITE TRANSACTIONAL_ID",)),
    Api(
        ApiKey.WRITE_TXN_MARKERS,
        1,
        2,
        flexible_from=1,
        permissions=("ALTER CLUSTER", "CLUSTER_ACTION CLUSTER"),
    ),
    Api(
        ApiKey.TXN_OFFSET_COMMIT,
        0,
        5,
        flexible_from=3,
        permissions=("WRITE TRANSACTIONAL_ID", "READ GROUP", "READ TOPIC"),
    ),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, flexible_from=2),
    Api(ApiKey.CREATE_ACLS, 1, 3, flexible_from=2),
    Api(ApiKey.DELETE_ACLS, 1, 3, flexible_from=2),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, flexible_from=4),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, flexible_from=2),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, flexible_from=2, permissions=("ALTER CLUSTER",)),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, flexible_from=2),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, flexible_from=2),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, flexible_from=2),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, flexible_from=2, permissions=("CREATE_TOKENS USER",)),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, flexible_from=2),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, flexible_from=2),
    Api(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        1,
        3,
        flexible_from=2,
        permissions=("DESCRIBE DELEGATION_TOKEN", "DESCRIBE_TOKENS USER"),
    ),
    Api(ApiKey.DELETE_GROUPS, 0, 2, flexible_from=2, permissions=("DELETE GROUP",)),
    Api(ApiKey.ELECT_LEADERS, 0, 2, flexible_from=2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, flexible_from=1),
    Api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, flexible_from=0, permissions=("ALTER CLUSTER",)
    ),
    Api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        0,
        flexible_from=0,
        permissions=("DESCRIBE CLUSTER",),
    ),
    Api(ApiKey.OFFSET_DELETE, 0, 0, flexible_from=1, permissions=("DELETE GROUP", "READ TOPIC")),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, flexible_from=1),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, flexible_from=1),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, flexible_from=0),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, flexible_from=0),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, flexible_from=0),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, flexible_from=0),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, flexible_from=0),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, flexible_from=0),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, flexible_from=0),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        0,
        flexible_from=0,
        permissions=("DESCRIBE TRANSACTIONAL_ID", "DESCRIBE TOPIC"),
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS,
        0,
        2,
        flexible_from=0,
        permissions=("DESCRIBE TRANSACTIONAL_ID",),
    ),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, flexible_from=0),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, flexible_from=0),
    Api(ApiKey.DESCRIBE_WORKERS, 0, 1, flexible_from=0),
    Api(ApiKey.DESCRIBE_TRUNCATIONS, 0, 0, flexible_from=0),
    Api(ApiKey.DESCRIBE_REPLICAS, 0, 0, flexible_from=0),
    Api(ApiKey.DESCRIBE_QUOTA_USE, 0, 0, flexible_from=0),
    Api(ApiKey.AUTHENTICATE_REPLICA, 0, 0, flexible_from=0),
    Api(ApiKey.DESCRIBE_UNREAD_RECORDS, 0, 0, flexible_from=0, permissions=("DESCRIBE TOPIC",)),
    Api(ApiKey.DESCRIBE_GROUP_ACTIVITY, 0, 1, flexible_from=0, permissions=("DESCRIBE GROUP",)),
    Api(ApiKey.ALTER_WORKER, 0, 0, flexible_from=0, permissions=("ALTER CLUSTER",)),
    Api(ApiKey.START_MOVE_PLAN, 0, 0, flexible_from=0, permissions=("ALTER CLUSTER",)),
    Api(ApiKey.ALTER_MOVE_PLAN, 0, 0, flexible_from=0, permissions=("ALTER CLUSTER",)),
    Api(ApiKey.DESCRIBE_MOVE_PLANS, 0, 0, flexible_from=0, permissions=("DESCRIBE CLUSTER",)),
    Api(
        ApiKey.DESCRIBE_COORDINATOR_MEMORY,
        0,
        0,
        flexible_from=0,
        permissions=("DESCRIBE CLUSTER",),
    ),
    Api(
        ApiKey.REMOVE_TRANSACTIONAL_IDS,
        0,
        0,
        flexible_from=0,
        permissions=("WRITE TRANSACTIONAL_ID",),
    ),
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _ROWS})
