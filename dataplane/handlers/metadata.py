"""Metadata: the workers, and the topics with their leaders, from the metadata image."""

from collections.abc import Coroutine, Sequence, Set
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import trio

from metaquorum.dataplane.handlers.cluster import CLUSTER_OPERATIONS, DescribesCluster
from metaquorum.dataplane.network.worker_addresses import live_workers
from metaquorum.dataplane.scheduling.time_slices import PIECE_ROWS, Steps, in_pieces
from metaquorum.dataplane.worker import mutation_limits
from metaquorum.dataplane.worker.capabilities import HasImage, HasSlicer, HasWorkerId
from metaquorum.dataplane.worker.context import Request
from metaquorum.dataplane.worker.metadata_cache import (
    PARTITIONS_PER_SLICE,
    TOPICS_PER_SLICE,
    MetadataCache,
    ResponseFormat,
    TopicView,
)
from metaquorum.dataplane.worker.mutation_limits import CreatesTopics
from metaquorum.metadata.image import MetadataImage, TopicImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.metadata.topic_names import check_topic_name
from metaquorum.quorum.controller.topics import NewTopic, TopicOutcome
from metaquorum.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.types import ZERO_UUID, Uuid

_TOPIC_IDS_SINCE: Final = 10
# Versions 10 and 11 have topic ids that do not work, and names that are null in requests only.
_BY_ID_SINCE: Final = 12
# Seconds a response waits for auto-created topics. The client retries for missing topics.
AUTO_CREATE_S: Final = 5.0
# Seconds a response waits for the next leader. Later requests of the connection wait, too.
NEXT_LEADER_S: Final = 0.4

# The encoded row of an existing topic (`metaquorum.dataplane.worker.metadata_cache`), or the error
# row of another one.
TopicRow: TypeAlias = bytes | MetadataResponseTopic
Found: TypeAlias = TopicImage | MetadataResponseTopic


class LostPartitions(Protocol):
    def offline(self, topic_id: Uuid) -> Set[int]: ...


class SuspectLeaders(Protocol):
    def look_for_ended_leaders(self, topics: Sequence[TopicImage]) -> None: ...

    def suspects(self) -> frozenset[int]: ...


class ViewsLeaders(HasImage, Protocol):
    """Capability to read the metadata, and which leaders' processes seem to have stopped."""

    @property
    def fetchers(self) -> SuspectLeaders: ...


class ViewsTopics(ViewsLeaders, HasWorkerId, Protocol):
    """`ViewsLeaders`, and the capability to read which partitions of this worker are offline."""

    @property
    def replica_manager(self) -> LostPartitions: ...


class FencedWorkers(Protocol):
    def ids(self) -> frozenset[int]: ...


class ListsWorkers(DescribesCluster, Protocol):
    """`DescribesCluster`, with the workers that were fenced a moment ago."""

    @property
    def recently_fenced(self) -> FencedWorkers: ...


class DescribesTopics(ViewsTopics, ListsWorkers, HasSlicer, Protocol):
    """`ViewsTopics` for any number of topics, with a cache of encoded rows."""

    @property
    def metadata_cache(self) -> MetadataCache: ...


class MetadataProgress(Protocol):
    async def wait_visible(self, end_offset: int) -> None: ...


class AwaitsLeaders(DescribesTopics, Protocol):
    """`DescribesTopics`, and the capability to wait until the metadata has a new leader."""

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping, so that requests must not wait."""

    @property
    def loader(self) -> MetadataProgress: ...


class CreatesAskedTopics(CreatesTopics, DescribesTopics, Protocol):
    """Capability to create requested topics, within the configs and quotas."""

    @property
    def auto_create_topics(self) -> bool: ...


class AnswersMetadata(CreatesAskedTopics, AwaitsLeaders, Protocol):
    """All that Metadata may use: it describes topics, creates them, and awaits their leaders."""


def handle_metadata(
    worker: AnswersMetadata, request: Request, message: MetadataRequest
) -> (
    MetadataResponse
    | Coroutine[Any, Any, MetadataResponse]
    | Steps[MetadataResponse | Coroutine[Any, Any, MetadataResponse]]
):
    """Describe the requested topics; a topic that repeats is described once, as in Kafka."""
    asked = message.topics
    if asked is None or (not asked and request.version == 0):
        return _describe_all(worker, request, message)
    if len(asked) > PIECE_ROWS:
        return _describe_many(worker, request, message, asked)
    if len(asked) > 1:
        message.topics = asked = list({(t.name, t.topic_id): t for t in asked}.values())
    if request.version < _TOPIC_IDS_SINCE:
        for topic in asked:
            topic.topic_id = ZERO_UUID
    if message.allow_auto_topic_creation and worker.auto_create_topics:
        names = [name for t in asked if (name := _new_name(worker, t))]
        if names:
            return _create_first(worker, request, message, names)
    worker.fetchers.look_for_ended_leaders(_topics_of(worker.image, asked))
    if _has_suspect_leader(worker, asked):
        return _once_led(worker, request, message, asked)
    found = [_find(worker, request, each) for each in asked]
    if _is_much(worker, request, message, found):
        return _topic_rows_in_slices(worker, request, message, found)
    return _topic_rows(worker, request, message, found)


async def _describe_many(
    worker: CreatesAskedTopics,
    request: Request,
    message: MetadataRequest,
    asked: list[MetadataRequestTopic],
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Describe many topics, without a wait for new leaders: their clients often refresh anyway."""
    by_id = request.version >= _TOPIC_IDS_SINCE
    once: dict[tuple[str | None, Uuid], MetadataRequestTopic] = {}

    def keep(topic: MetadataRequestTopic) -> None:
        if not by_id:
            topic.topic_id = ZERO_UUID
        once.setdefault((topic.name, topic.topic_id), topic)

    await in_pieces(asked, keep)
    message.topics = list(once.values())
    worker.slicer.discard(asked, once)
    if message.allow_auto_topic_creation and worker.auto_create_topics:
        wanted = await in_pieces(message.topics, partial(_new_name, worker))
        names = [name for name in wanted if name]
        if names:
            return _create_first(worker, request, message, names)
    found = await in_pieces(message.topics, partial(_find, worker, request))
    return _topic_rows_in_slices(worker, request, message, found)


def _new_name(worker: HasImage, topic: MetadataRequestTopic) -> str | None:
    """Return the name if it may be that of a new topic: it is unknown, and no id was asked for."""
    is_new = topic.topic_id == ZERO_UUID and topic.name and worker.image.topic(topic.name) is None
    return topic.name if is_new else None


def _has_suspect_leader(worker: ViewsLeaders, asked: list[MetadataRequestTopic]) -> bool:
    suspects = worker.fetchers.suspects()
    if not suspects:
        return False
    return any(
        partition.leader in suspects
        for topic in _topics_of(worker.image, asked)
        for partition in topic.partitions
    )


async def _once_led(
    worker: AwaitsLeaders,
    request: Request,
    message: MetadataRequest,
    asked: list[MetadataRequestTopic],
) -> MetadataResponse:
    """Describe topics after waiting up to NEXT_LEADER_S for new leaders of their partitions.

    The process of a suspect leader has probably stopped, and the controller is about to elect a new
    leader. A client that receives no leader would retry with growing backoff.
    """
    with trio.move_on_after(NEXT_LEADER_S):
        while _has_suspect_leader(worker, asked) and not worker.stopping:
            await worker.loader.wait_visible(worker.image.end_offset + 1)
    found = [_find(worker, request, each) for each in asked]
    return await _topic_rows_in_slices(worker, request, message, found)


def _topics_of(image: MetadataImage, asked: list[MetadataRequestTopic]) -> list[TopicImage]:
    """Return the requested topics that exist."""
    return [topic for each in asked if (topic := _topic_of(image, each)) is not None]


def _topic_of(image: MetadataImage, asked: MetadataRequestTopic) -> TopicImage | None:
    if asked.name is None or asked.topic_id != ZERO_UUID:
        return image.topic_by_id(asked.topic_id)
    return image.topic(asked.name)


async def _create_first(
    worker: CreatesAskedTopics, request: Request, message: MetadataRequest, names: list[str]
) -> MetadataResponse:
    """Create unknown topics first; the response then has their leaders."""
    once: dict[str, NewTopic] = {}

    def spec(name: str) -> None:
        if name not in once:
            once[name] = NewTopic(name)

    await in_pieces(names, spec)
    specs = list(once.values())
    counts = await in_pieces(specs, partial(mutation_limits.partitions_of_new, worker))
    allowed = await mutation_limits.allowed(worker, request, counts, is_strict=False)
    outcomes = await worker.controller_client.create_topics(
        request.context, specs, timeout_s=AUTO_CREATE_S
    )
    refused: dict[str | None, TopicOutcome] = {}

    def note(outcome: TopicOutcome) -> None:
        if outcome.code is not ErrorCode.NONE:
            refused[outcome.name] = outcome

    await in_pieces(outcomes, note)
    assert message.topics is not None

    def find(asked: MetadataRequestTopic) -> Found:
        each = _find(worker, request, asked)
        if (
            isinstance(each, MetadataResponseTopic)
            and each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and each.name in refused
        ):
            each.error_code = _creation_error(refused[each.name].code)
        return each

    found = await in_pieces(message.topics, find)
    worker.slicer.discard(names, once, specs, outcomes, refused)
    response = await _topic_rows_in_slices(worker, request, message, found)
    response.throttle_time_ms = allowed.throttle_ms
    return response


def _creation_error(code: ErrorCode) -> ErrorCode:
    """Return the error code of a failed auto-creation in a Metadata response."""
    if code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_REPLICATION_FACTOR):
        return code
    # Created by another request but not visible here yet, or not created yet.
    if code in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _find(worker: HasImage, request: Request, asked: MetadataRequestTopic) -> Found:
    """Return the topic, or an error row; an id has precedence, as it never names another topic."""
    image = worker.image
    if asked.name is None or asked.topic_id != ZERO_UUID:
        if request.version < _BY_ID_SINCE:
            # In these versions a response has no null for a name. KAFKA-12701.
            return MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=asked.name or ""
            )
        return image.topic_by_id(asked.topic_id) or MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
        )
    topic = image.topic(asked.name)
    if topic is not None:
        return topic
    try:
        check_topic_name(asked.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except KafkaError as error:
        code = error.code
    return MetadataResponseTopic(
        error_code=code, name=asked.name, is_internal=is_internal(asked.name)
    )


def view_of(worker: ViewsTopics, topic: TopicImage) -> TopicView:
    offline = worker.replica_manager.offline(topic.topic_id)
    return TopicView(worker.image, topic, worker.worker_id, offline, worker.fetchers.suspects())


def _form(request: Request, message: MetadataRequest) -> ResponseFormat:
    return ResponseFormat(request.version, message.include_topic_authorized_operations)


def _is_much(
    worker: DescribesTopics, request: Request, message: MetadataRequest, found: Sequence[Found]
) -> bool:
    """Return whether the response takes more than one slice: many topics or uncached partitions."""
    if len(found) > TOPICS_PER_SLICE:
        return True
    rows, form = worker.metadata_cache, _form(request, message)
    partitions = 0
    for each in found:
        if isinstance(each, TopicImage) and rows.kept(view_of(worker, each), form) is None:
            partitions += len(each.partitions)
    return partitions > PARTITIONS_PER_SLICE


def _topic_rows(
    worker: DescribesTopics, request: Request, message: MetadataRequest, found: Sequence[Found]
) -> MetadataResponse:
    rows, form = worker.metadata_cache, _form(request, message)
    described: list[TopicRow] = [
        rows.row(view_of(worker, each), form) if isinstance(each, TopicImage) else each
        for each in found
    ]
    return _response(worker, request, message, described)


async def _topic_rows_in_slices(
    worker: DescribesTopics, request: Request, message: MetadataRequest, found: list[Found]
) -> MetadataResponse:
    rows, form = worker.metadata_cache, _form(request, message)
    described: list[TopicRow] = []
    for number, each in enumerate(found, 1):
        if isinstance(each, TopicImage):
            described.append(await rows.make(view_of(worker, each), form))
        else:
            described.append(each)
        if number % TOPICS_PER_SLICE == 0:
            await trio.lowlevel.checkpoint()
    worker.slicer.discard(found)
    return _response(worker, request, message, described)


def _describe_all(
    worker: DescribesTopics, request: Request, message: MetadataRequest
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    found: list[Found] = list(worker.image.topics.values())
    if _is_much(worker, request, message, found):
        return _topic_rows_in_slices(worker, request, message, found)
    return _topic_rows(worker, request, message, found)


def _response(
    worker: ListsWorkers, request: Request, message: MetadataRequest, described: list[TopicRow]
) -> MetadataResponse:
    also = worker.recently_fenced.ids() if message.topics else frozenset()
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=w.worker_id, host=w.host, port=w.port, rack=w.rack)
            for w in live_workers(worker.image, request.client.listener, also)
        ],
        cluster_id=worker.image.cluster_id,
        controller_id=worker.worker_id,  # any worker accepts admin requests
        topics=described,  # type: ignore[arg-type]  # rows may be encoded
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
