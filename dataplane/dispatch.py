"""From a frame to its handler, and from the handler's message to the bytes of the answer.

A handler takes (worker, request, message) and returns its response message, None for no answer, or
a coroutine of either. It never sees bytes; what it raises as WireError or CloseConnectionError ends
the connection.
"""

from collections.abc import Callable, Coroutine, Mapping
from inspect import iscoroutine
from typing import Any, Final

from dataplane.connection import Client, CloseConnectionError, Reply
from dataplane.handlers import (
    api_versions,
    cluster,
    fetch,
    metadata,
    offsets,
    produce,
    producer_ids,
    topics,
)
from dataplane.worker import Request, Worker
from wire.apis import APIS, Api, ApiKey
from wire.codec import decoder
from wire.errors import WireError
from wire.headers import (
    decode_request_header,
    encode_response,
    encode_response_parts,
    encode_unsupported_api_versions,
)
from wire.message import Message

Answer = Message | None
Handler = Callable[[Worker, Request, Any], "Answer | Coroutine[Any, Any, Answer]"]

HANDLERS: Final[Mapping[int, Handler]] = {
    ApiKey.PRODUCE: produce.handle_produce,
    ApiKey.FETCH: fetch.handle_fetch,
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.FIND_COORDINATOR: cluster.handle_find_coordinator,
    ApiKey.API_VERSIONS: api_versions.handle_api_versions,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.INIT_PRODUCER_ID: producer_ids.handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_CLUSTER: cluster.handle_describe_cluster,
}
assert HANDLERS.keys() == APIS.keys()


class Dispatcher:
    """Answers the requests of all connections of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._routes = {key: (APIS[key], handler) for key, handler in HANDLERS.items()}

    def handle(self, frame: memoryview, client: Client) -> Reply | Coroutine[Any, Any, Reply]:
        header, body = decode_request_header(frame)
        version = header.api_version
        route = self._routes.get(header.api_key)
        if route is None:
            raise CloseConnectionError(f"api_key: {header.api_key} is not served")
        api, handler = route
        if not api.min_version <= version <= api.max_version:
            if api.key == ApiKey.API_VERSIONS:
                return encode_unsupported_api_versions(header.correlation_id)
            raise CloseConnectionError(f"api_version: {api.name} v{version} is not served")
        message, end = decoder(api.request, version)(frame, body)
        if end != len(frame):
            raise WireError(
                f"{api.name}Request v{version}: {len(frame) - end} bytes behind its end"
            )
        answer = handler(self._worker, Request(version, header.client_id, client), message)
        if iscoroutine(answer):
            return self._finish(api, version, header.correlation_id, answer)
        return self._encode(api, version, header.correlation_id, answer)

    async def _finish(
        self, api: Api, version: int, correlation_id: int, answer: Coroutine[Any, Any, Answer]
    ) -> Reply:
        return self._encode(api, version, correlation_id, await answer)

    def _encode(self, api: Api, version: int, correlation_id: int, answer: Any) -> Reply:
        if answer is None:
            return None
        if api.key == ApiKey.FETCH:
            return encode_response_parts(api, version, correlation_id, answer)
        return encode_response(api, version, correlation_id, answer)
