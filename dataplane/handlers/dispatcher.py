"""The dispatcher: from a frame to its handler, and from its message to the response bytes.

A handler takes (worker, request, message) and returns its response message, None for no response,
or a `DelayedResponse`. One whose work is long, or that waits, is a coroutine (`async def`):

    row of HANDLERS     where its coroutine runs
    Row(...)            stepped when the request arrives; continued in the connection's task if the
                        slice ends first. It does not wait, but may return a coroutine that does
    waits=True          in the connection's task from its start

`pause()` is the slice point of both (`metaquorum.dataplane.scheduling.time_slices`). A handler
never sees bytes; if it raises WireError or CloseConnectionError, the connection is closed.

A large frame is decoded in slices. The response of a coroutine that did not end in its first step
is encoded in slices.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import CoroutineType
from typing import Any, Final, NamedTuple, TypeAlias, cast

from metaquorum.dataplane.handlers import (
    alter_configs,
    api_versions,
    cluster,
    configs,
    elections,
    log_dirs,
    metadata,
    move_plans,
    offsets,
    partitions_api,
    produce,
    producer_ids,
    quorum,
    reassignments,
    records,
    replicas,
    topics,
    unread_records,
)
from metaquorum.dataplane.handlers.fetch import handler as fetch
from metaquorum.dataplane.handlers.groups import activity, coordinators, members
from metaquorum.dataplane.handlers.groups import admin as group_admin
from metaquorum.dataplane.handlers.groups import offsets as group_offsets
from metaquorum.dataplane.handlers.quotas import client_quotas, coordinator_memory, quota_use
from metaquorum.dataplane.handlers.request_meter import OTHER_VERSION, RequestCounter, RequestMeter
from metaquorum.dataplane.handlers.security import acls, delegation_tokens, sasl, scram
from metaquorum.dataplane.handlers.transactions import coordination, markers
from metaquorum.dataplane.handlers.transactions import offsets as txn_offsets
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.network.delayed import DelayedResponse
from metaquorum.dataplane.network.replies import (
    CloseConnectionError,
    DelayedReply,
    PendingReply,
    Reply,
)
from metaquorum.dataplane.scheduling.time_slices import (
    Steps,
    continued,
    emptied_message,
    sliced,
    step,
)
from metaquorum.dataplane.worker.context import Request, Worker
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import APIS, Api, ApiKey
from metaquorum.wire.protocol.headers import (
    encode_response_in_pieces,
    encode_response_parts,
    encode_unsupported_api_versions,
    response_encoder,
)
from metaquorum.wire.schema.codec import decoder, decoder_in_pieces
from metaquorum.wire.schema.message import Message

# Frames above this size are decoded in slices, if they have more than a few rows.
LARGE_FRAME_BYTES: Final = 8 * 1024

Answer: TypeAlias = Message | None
# Return value of a handler, or of its coroutine.
Handled: TypeAlias = Answer | DelayedResponse | Steps[Answer | DelayedResponse]
Handler: TypeAlias = Callable[[Worker, Request, Any], Handled | Steps[Handled]]


class Row(NamedTuple):
    """The handler of an API; whether it waits for more than its turn, such as for a response."""

    handler: Handler
    waits: bool = False


HANDLERS: Final[Mapping[int, Row]] = {
    ApiKey.PRODUCE: Row(produce.handle_produce),
    ApiKey.FETCH: Row(fetch.handle_fetch, waits=True),
    ApiKey.LIST_OFFSETS: Row(offsets.handle_list_offsets),
    ApiKey.METADATA: Row(metadata.handle_metadata, waits=True),
    ApiKey.OFFSET_COMMIT: Row(group_offsets.handle_offset_commit),
    ApiKey.OFFSET_FETCH: Row(group_offsets.handle_offset_fetch),
    ApiKey.FIND_COORDINATOR: Row(coordinators.handle_find_coordinator),
    ApiKey.JOIN_GROUP: Row(members.handle_join_group),
    ApiKey.HEARTBEAT: Row(members.handle_heartbeat),
    ApiKey.LEAVE_GROUP: Row(members.handle_leave_group),
    ApiKey.SYNC_GROUP: Row(members.handle_sync_group),
    ApiKey.DESCRIBE_GROUPS: Row(group_admin.handle_describe_groups),
    ApiKey.LIST_GROUPS: Row(group_admin.handle_list_groups),
    ApiKey.SASL_HANDSHAKE: Row(sasl.handle_sasl_handshake),
    ApiKey.SASL_AUTHENTICATE: Row(sasl.handle_sasl_authenticate),
    ApiKey.API_VERSIONS: Row(api_versions.handle_api_versions),
    ApiKey.CREATE_TOPICS: Row(topics.handle_create_topics, waits=True),
    ApiKey.DELETE_TOPICS: Row(topics.handle_delete_topics, waits=True),
    ApiKey.INIT_PRODUCER_ID: Row(producer_ids.handle_init_producer_id, waits=True),
    ApiKey.ADD_PARTITIONS_TO_TXN: Row(coordination.handle_add_partitions_to_txn),
    ApiKey.ADD_OFFSETS_TO_TXN: Row(coordination.handle_add_offsets_to_txn, waits=True),
    ApiKey.END_TXN: Row(coordination.handle_end_txn, waits=True),
    ApiKey.DESCRIBE_TRANSACTIONS: Row(coordination.handle_describe_transactions, waits=True),
    ApiKey.LIST_TRANSACTIONS: Row(coordination.handle_list_transactions, waits=True),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row(offsets.handle_offset_for_leader_epoch),
    ApiKey.DESCRIBE_CONFIGS: Row(configs.handle_describe_configs),
    ApiKey.ALTER_CONFIGS: Row(alter_configs.handle_alter_configs, waits=True),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row(
        alter_configs.handle_incremental_alter_configs, waits=True
    ),
    ApiKey.CREATE_PARTITIONS: Row(partitions_api.handle_create_partitions, waits=True),
    ApiKey.ELECT_LEADERS: Row(elections.handle_elect_leaders, waits=True),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Row(
        reassignments.handle_alter_partition_reassignments, waits=True
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Row(reassignments.handle_list_partition_reassignments),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Row(partitions_api.handle_describe_topic_partitions),
    ApiKey.DESCRIBE_PRODUCERS: Row(partitions_api.handle_describe_producers, waits=True),
    ApiKey.DELETE_RECORDS: Row(records.handle_delete_records, waits=True),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Row(log_dirs.handle_alter_replica_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: Row(log_dirs.handle_describe_log_dirs, waits=True),
    ApiKey.DELETE_GROUPS: Row(group_admin.handle_delete_groups),
    ApiKey.OFFSET_DELETE: Row(group_offsets.handle_offset_delete),
    ApiKey.WRITE_TXN_MARKERS: Row(markers.handle_write_txn_markers, waits=True),
    ApiKey.TXN_OFFSET_COMMIT: Row(txn_offsets.handle_txn_offset_commit, waits=True),
    ApiKey.DESCRIBE_ACLS: Row(acls.handle_describe_acls),
    ApiKey.CREATE_ACLS: Row(acls.handle_create_acls),
    ApiKey.DELETE_ACLS: Row(acls.handle_delete_acls),
    ApiKey.CREATE_DELEGATION_TOKEN: Row(delegation_tokens.handle_create_delegation_token),
    ApiKey.RENEW_DELEGATION_TOKEN: Row(delegation_tokens.handle_renew_delegation_token),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Row(delegation_tokens.handle_expire_delegation_token),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Row(delegation_tokens.handle_describe_delegation_token),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Row(client_quotas.handle_describe_client_quotas, waits=True),
    ApiKey.ALTER_CLIENT_QUOTAS: Row(client_quotas.handle_alter_client_quotas, waits=True),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Row(scram.handle_describe_user_scram_credentials),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Row(scram.handle_alter_user_scram_credentials, waits=True),
    ApiKey.LIST_CONFIG_RESOURCES: Row(configs.handle_list_config_resources),
    ApiKey.DESCRIBE_CLUSTER: Row(cluster.handle_describe_cluster),
    ApiKey.DESCRIBE_QUORUM: Row(quorum.handle_describe_quorum, waits=True),
    ApiKey.UPDATE_FEATURES: Row(quorum.handle_update_features, waits=True),
    ApiKey.UNREGISTER_BROKER: Row(quorum.handle_unregister_broker, waits=True),
    ApiKey.DESCRIBE_WORKERS: Row(quorum.handle_describe_workers, waits=True),
    ApiKey.DESCRIBE_QUOTA_USE: Row(quota_use.handle_describe_quota_use, waits=True),
    ApiKey.DESCRIBE_TRUNCATIONS: Row(replicas.handle_describe_truncations),
    ApiKey.DESCRIBE_REPLICAS: Row(replicas.handle_describe_replicas, waits=True),
    ApiKey.AUTHENTICATE_REPLICA: Row(replicas.handle_authenticate_replica),
    ApiKey.DESCRIBE_UNREAD_RECORDS: Row(unread_records.handle_describe_unread_records, waits=True),
    ApiKey.DESCRIBE_GROUP_ACTIVITY: Row(activity.handle_describe_group_activity),
    ApiKey.ALTER_WORKER: Row(quorum.handle_alter_worker, waits=True),
    ApiKey.START_MOVE_PLAN: Row(move_plans.handle_start_move_plan, waits=True),
    ApiKey.ALTER_MOVE_PLAN: Row(move_plans.handle_alter_move_plan, waits=True),
    ApiKey.DESCRIBE_MOVE_PLANS: Row(move_plans.handle_describe_move_plans),
    ApiKey.DESCRIBE_COORDINATOR_MEMORY: Row(coordinator_memory.handle_describe_coordinator_memory),
    ApiKey.REMOVE_TRANSACTIONAL_IDS: Row(coordination.handle_remove_transactional_ids, waits=True),
}
assert HANDLERS.keys() == APIS.keys()


class Route:
    """Handler and codec of one version of one API, looked up once."""

    __slots__ = (
        "_encode",
        "api",
        "counter",
        "decode",
        "decode_in_pieces",
        "handler",
        "has_throttle_time",
        "version",
        "waits",
    )

    def __init__(self, api: Api, version: int, counter: RequestCounter | None) -> None:
        self.api = api
        self.version = version
        self.counter = counter
        self.handler, self.waits = HANDLERS[api.key]
        self.decode = decoder(api.request, version)
        self.decode_in_pieces = decoder_in_pieces(api.request, version)
        self.has_throttle_time = hasattr(api.response(), "throttle_time_ms")
        self._encode: Callable[[int, Message], Reply] = (
            partial(encode_response_parts, api, version)
            if api.key == ApiKey.FETCH
            else response_encoder(api, version)
        )

    def reply(self, correlation_id: int, answer: Answer) -> Reply:
        if answer is None:
            return None
        return self._encode(correlation_id, answer)

    async def reply_in_pieces(self, correlation_id: int, answer: Answer) -> Reply:
        if answer is None:
            return None
        return await sliced(
            encode_response_in_pieces(self.api, self.version, correlation_id, answer)
        )


class _PendingRequest:
    """A request without a response so far."""

    __slots__ = ("correlation_id", "is_in_task", "message", "request", "route", "size_bytes")

    def __init__(
        self, route: Route, request: Request, correlation_id: int, size_bytes: int
    ) -> None:
        self.route = route
        self.request = request
        self.correlation_id = correlation_id
        self.message: Message | None = None  # set if it is large, to free it in slices
        self.size_bytes = size_bytes  # frame size; the frame may be freed earlier
        self.is_in_task = False


class Dispatcher:
    """Dispatcher of the requests of all connections of one worker to their handlers."""

    def __init__(self, worker: Worker, meter: RequestMeter | None = None) -> None:
        """Create the dispatcher; `meter` counts and times the requests."""
        self._worker = worker
        self._meter = meter
        self._slicer = worker.slicer
        self._routes: dict[tuple[int, int], Route] = {}
        self._produce_routes: dict[int, Route] = {}  # by version: found sooner

    def handle(self, frame: memoryview, client: Client) -> Reply | PendingReply | DelayedReply:
        header, body = request_form.decode_request_header(frame)
        version = header.api_version
        if header.api_key:
            route = self._routes.get((header.api_key, version))
        else:  # Produce
            route = self._produce_routes.get(version)
        if route is None:
            route = self._new_route(header.api_key, version)
            if route is None:
                return self._refuse_api_versions(header.correlation_id, frame, client)
        counter = route.counter
        if counter is not None:
            if not counter.credit:
                assert self._meter is not None
                return self._meter.timed(counter, self.handle, frame, client)
            counter.credit -= 1
        if not header.api_key:
            reply = produce.handle_produce_fast(self._worker, frame, body, header, client)
            if reply is not None:
                return reply
        request = Request(version, header.client_id, client)
        if len(frame) > LARGE_FRAME_BYTES:
            asked = _PendingRequest(route, request, header.correlation_id, len(frame))
            work = self._decode_and_handle(asked, frame, body)
            done = step(work)
            if done is None:
                return self._in_task(asked, work, is_begun=True)
            return self._reply_to(asked, done[0])
        # Bytes after the message are ignored, as in Kafka: librdkafka appends three bytes to "all
        # topics" in a flexible Metadata request (its issue 5049).
        message, _ = route.decode(frame, body)
        handled = route.handler(self._worker, request, message)
        if isinstance(handled, Message):
            return self._reply(route, request, header.correlation_id, len(frame), handled)
        return self._reply_to(
            _PendingRequest(route, request, header.correlation_id, len(frame)), handled
        )

    def _new_route(self, api_key: int, version: int) -> Route | None:
        """Return the route of a version seen first; None if it is one of ApiVersions not served.

        Raises CloseConnectionError if another API has no such version.
        """
        api = APIS.get(api_key)
        if api is None:
            raise CloseConnectionError(f"api_key: {api_key} is not supported")
        if not api.serves(version):
            if api.key == ApiKey.API_VERSIONS:
                return None
            raise CloseConnectionError(f"api_version: {api.name} v{version} is not supported")
        counter = None if self._meter is None else self._meter.counter(api_key, version)
        route = Route(api, version, counter)
        if api.key == ApiKey.PRODUCE:
            self._produce_routes[version] = route
        else:
            self._routes[api_key, version] = route
        return route

    def _refuse_api_versions(
        self, correlation_id: int, frame: memoryview, client: Client
    ) -> Reply | PendingReply | DelayedReply:
        """Answer ApiVersions of a version that is not served with those that are."""
        if self._meter is None:
            return encode_unsupported_api_versions(correlation_id)
        counter = self._meter.counter(ApiKey.API_VERSIONS, OTHER_VERSION)

        def refuse(frame: memoryview, client: Client) -> Reply:
            counter.credit -= 1
            return encode_unsupported_api_versions(correlation_id)

        if counter.credit:
            return refuse(frame, client)
        return self._meter.timed(counter, refuse, frame, client)

    async def _decode_and_handle(
        self, asked: _PendingRequest, frame: memoryview, body: int
    ) -> Handled | Steps[Handled]:
        """Decode the message in pieces, call the handler and return its result.

        In a task, a coroutine that does not wait is part of the work for which memory is reserved.
        """
        message, _ = await sliced(asked.route.decode_in_pieces(frame, body))
        asked.message = message
        handled = asked.route.handler(self._worker, asked.request, message)
        if asked.is_in_task and type(handled) is CoroutineType and not asked.route.waits:
            result: Handled = await handled
            return result
        return handled

    def _reply_to(
        self, asked: _PendingRequest, handled: Handled | Steps[Handled]
    ) -> Reply | PendingReply | DelayedReply:
        if type(handled) is CoroutineType:
            if asked.route.waits:
                return self._in_task(asked, handled, is_begun=False)
            done = self._slicer.run(handled)
            if done is None:
                return self._in_task(asked, handled, is_begun=True)
            handled = done[0]
            if type(handled) is CoroutineType:
                return self._in_task(asked, handled, is_begun=False)
        if isinstance(handled, DelayedResponse):
            return self._delayed(asked, handled)
        answer = cast(Answer, handled)
        return self._reply(
            asked.route, asked.request, asked.correlation_id, asked.size_bytes, answer
        )

    def _delayed(self, asked: _PendingRequest, delayed: DelayedResponse) -> DelayedReply:
        """Return the reply that waits; one that may wait for minutes does so without its request.

        The request may have the size of the largest frame, and no limit counts it any longer.
        """
        if delayed.may_outlast_idle:
            self._discard(asked)
        return DelayedReply(delayed, partial(self._reply_to_given, asked))

    def _reply_to_given(
        self, asked: _PendingRequest, given: Answer | Steps[Answer]
    ) -> Reply | PendingReply:
        """Return the reply for the result of a `DelayedResponse`; a coroutine of it only pauses."""
        if type(given) is CoroutineType:
            done = self._slicer.run(given)
            if done is None:
                return self._in_task(asked, given, is_begun=True)
            given = done[0]
        reply = self._reply_to(asked, cast(Answer, given))
        assert not isinstance(reply, DelayedReply)
        return reply

    def _in_task(self, asked: _PendingRequest, work: Steps[Any], *, is_begun: bool) -> PendingReply:
        """Return the reply that the connection's task makes; `is_begun`: `work` has paused."""

        def closed() -> None:
            work.close()
            self._discard(asked)

        return PendingReply(self._finish(asked, work, is_begun=is_begun), closed)

    async def _finish(
        self, asked: _PendingRequest, work: Steps[Any], *, is_begun: bool
    ) -> Reply | DelayedReply:
        asked.is_in_task = True
        try:
            if is_begun:
                is_done, result = await self._slicer.finish(
                    self._continue(asked, work), asked.size_bytes
                )
                if is_done:
                    return cast(Reply, result)
            else:
                self._slicer.slice_this_task()
                result = await work
            while type(result) is CoroutineType:
                result = await result
            if isinstance(result, DelayedResponse):
                return self._delayed(asked, result)
            # The request and its response are in memory: nothing is reserved, as waiting for
            # memory would free none, and would delay a large request that is done.
            return await self._reply_in_pieces(asked, result)
        except BaseException:
            work.close()
            self._discard(asked)
            raise

    async def _continue(self, asked: _PendingRequest, work: Steps[Any]) -> tuple[bool, Any]:
        """Return True and the reply of stepped work; or False and what it waits for."""
        result = await continued(work)
        if type(result) is CoroutineType or isinstance(result, DelayedResponse):
            return False, result
        return True, await self._reply_in_pieces(asked, result)

    def _discard(self, asked: _PendingRequest) -> None:
        """Free the message of a request that is not answered; in slices if it is large."""
        if (message := asked.message) is not None:
            asked.message = None
            self._slicer.finish_in_background(emptied_message(message))

    def _reply(
        self, route: Route, request: Request, correlation_id: int, size_bytes: int, answer: Answer
    ) -> Reply:
        if self._worker.quotas.is_on:
            self._charge(route, request, size_bytes, answer)
        if self._worker.errors is not None and answer is not None:
            self._worker.errors.count(route.api.key, answer)
        return route.reply(correlation_id, answer)

    async def _reply_in_pieces(self, asked: _PendingRequest, answer: Answer) -> Reply:
        route = asked.route
        if self._worker.quotas.is_on:
            self._charge(route, asked.request, asked.size_bytes, answer)
        if self._worker.errors is not None and answer is not None:
            await self._worker.errors.count_in_pieces(route.api.key, answer)
        reply = await route.reply_in_pieces(asked.correlation_id, answer)
        for message in (answer, asked.message):
            if message is not None:
                await emptied_message(message)
        return reply

    def _charge(self, route: Route, request: Request, size_bytes: int, answer: Answer) -> None:
        """Count the request against the client's quotas; set the throttle time of the response."""
        throttle_ms = self._worker.quotas.answering(
            request.client,
            request.client_id,
            produced_bytes=size_bytes if route.api.key == ApiKey.PRODUCE else 0,
        )
        if throttle_ms and answer is not None and route.has_throttle_time:
            # A fetch may have set it before, for the fetched bytes.
            answer.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]
