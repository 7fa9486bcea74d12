"""From a frame to its handler, and from the handler's message to the bytes of the answer.

A handler takes (worker, request, message) and returns its response message, None for no answer, or
a coroutine of either. It never sees bytes; what it raises as WireError or CloseConnectionError ends
the connection.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import CoroutineType
from typing import Any, Final, cast

from dataplane.connection import (
    Client,
    CloseConnectionError,
    LaterReply,
    PendingReply,
    Reply,
)
from dataplane.handlers import (
    access,
    alter_configs,
    api_versions,
    client_quotas,
    cluster,
    configs,
    elections,
    fetch,
    log_dirs,
    metadata,
    offsets,
    partitions_api,
    produce,
    producer_ids,
    quorum,
    quota_use,
    records,
    replicas,
    topics,
)
from dataplane.later import Later
from dataplane.worker import Request, Worker
from wire.apis import APIS, Api, ApiKey
from wire.codec import decoder
from wire.headers import (
    decode_request_header,
    encode_response,
    encode_response_parts,
    encode_unsupported_api_versions,
)
from wire.message import Message

Answer = Message | None
Handler = Callable[[Worker, Request, Any], "Answer | Coroutine[Any, Any, Answer] | Later"]

HANDLERS: Final[Mapping[int, Handler]] = {
    ApiKey.PRODUCE: produce.handle_produce,
    ApiKey.FETCH: fetch.handle_fetch,
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.FIND_COORDINATOR: cluster.handle_find_coordinator,
    ApiKey.SASL_HANDSHAKE: access.handle_sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: access.handle_sasl_authenticate,
    ApiKey.API_VERSIONS: api_versions.handle_api_versions,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.INIT_PRODUCER_ID: producer_ids.handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs.handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs.handle_incremental_alter_configs,
    ApiKey.CREATE_PARTITIONS: partitions_api.handle_create_partitions,
    ApiKey.ELECT_LEADERS: elections.handle_elect_leaders,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: partitions_api.handle_describe_topic_partitions,
    ApiKey.DESCRIBE_PRODUCERS: partitions_api.handle_describe_producers,
    ApiKey.DELETE_RECORDS: records.handle_delete_records,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.handle_describe_log_dirs,
    ApiKey.DESCRIBE_ACLS: access.handle_describe_acls,
    ApiKey.CREATE_ACLS: access.handle_create_acls,
    ApiKey.DELETE_ACLS: access.handle_delete_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: client_quotas.handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: client_quotas.handle_alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: access.handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: access.handle_alter_user_scram_credentials,
    ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
    ApiKey.DESCRIBE_CLUSTER: cluster.handle_describe_cluster,
    ApiKey.DESCRIBE_QUORUM: quorum.handle_describe_quorum,
    ApiKey.UPDATE_FEATURES: quorum.handle_update_features,
    ApiKey.UNREGISTER_BROKER: quorum.handle_unregister_broker,
    ApiKey.DESCRIBE_WORKERS: quorum.handle_describe_workers,
    ApiKey.DESCRIBE_QUOTA_USE: quota_use.handle_describe_quota_use,
    ApiKey.DESCRIBE_TRUNCATIONS: replicas.handle_describe_truncations,
    ApiKey.DESCRIBE_REPLICAS: replicas.handle_describe_replicas,
    ApiKey.AUTHENTICATE_REPLICA: replicas.handle_authenticate_replica,
}
assert HANDLERS.keys() == APIS.keys()


class Route:
    """What one version of one API needs, looked up once."""

    __slots__ = ("_encode", "api", "decode", "handler", "has_throttle_time", "version")

    def __init__(self, api: Api, version: int) -> None:
        self.api = api
        self.version = version
        self.handler = HANDLERS[api.key]
        self.decode = decoder(api.request, version)
        self.has_throttle_time = hasattr(api.response(), "throttle_time_ms")
        self._encode: Callable[[Api, int, int, Message], Reply] = (
            encode_response_parts if api.key == ApiKey.FETCH else encode_response
        )

    def reply(self, correlation_id: int, answer: Answer) -> Reply:
        if answer is None:
            return None
        return self._encode(self.api, self.version, correlation_id, answer)


class Dispatcher:
    """Answers the requests of all connections of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._routes: dict[tuple[int, int], Route] = {}

    def handle(self, frame: memoryview, client: Client) -> Reply | PendingReply | LaterReply:
        header, body = decode_request_header(frame)
        version = header.api_version
        if not header.api_key:  # Produce
            reply = produce.handle_one(self._worker, frame, body, header, client)
            if reply is not None:
                return reply
        route = self._routes.get((header.api_key, version))
        if route is None:
            api = APIS.get(header.api_key)
            if api is None:
                raise CloseConnectionError(f"api_key: {header.api_key} is not served")
            if not api.serves(version):
                if api.key == ApiKey.API_VERSIONS:
                    return encode_unsupported_api_versions(header.correlation_id)
                raise CloseConnectionError(f"api_version: {api.name} v{version} is not served")
            route = self._routes[header.api_key, version] = Route(api, version)
        # Bytes behind the message are let pass, as Kafka does: librdkafka leaves three behind
        # "all topics" in a flexible Metadata request (its issue 5049).
        message, _ = route.decode(frame, body)
        request = Request(version, header.client_id, client)
        size_bytes = len(frame)  # it may be gone when the answer is there
        answer = route.handler(self._worker, request, message)
        if type(answer) is CoroutineType:
            return PendingReply(
                answer,
                partial(self._reply, route, request, size_bytes, header.correlation_id),
            )
        if isinstance(answer, Later):
            return LaterReply(
                answer, partial(self._reply, route, request, size_bytes, header.correlation_id)
            )
        return self._reply(route, request, size_bytes, header.correlation_id, cast(Answer, answer))

    def _reply(
        self, route: Route, request: Request, size_bytes: int, correlation_id: int, answer: Answer
    ) -> Reply:
        """The answer as it leaves. It says for how long its client is left alone behind it."""
        quotas = self._worker.quotas
        if quotas.is_on:
            throttle_ms = quotas.answering(
                request.client,
                request.client_id,
                produced_bytes=size_bytes if route.api.key == ApiKey.PRODUCE else 0,
            )
            if throttle_ms and answer is not None and route.has_throttle_time:
                # It may say so already: of bytes fetched.
                answer.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]
        if self._worker.errors is not None and answer is not None:
            self._worker.errors.count(route.api.key, answer)
        return route.reply(correlation_id, answer)
