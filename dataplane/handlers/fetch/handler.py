"""The handler of Fetch: it identifies the client, limits the bytes, and finds the fetch session.

Consumers read up to the high watermark, with read_committed up to the last stable offset, followers
up to the log end.
"""

from typing import Final, Protocol

from metaquorum.dataplane.fetch.reader import replica_of
from metaquorum.dataplane.fetch.sessions import is_whole
from metaquorum.dataplane.handlers.fetch.allowance import FetchAllowance, LimitsFetches
from metaquorum.dataplane.handlers.fetch.capabilities import KeepsSessions
from metaquorum.dataplane.handlers.fetch.delayed_fetch import Answer
from metaquorum.dataplane.handlers.fetch.full_fetch import FullFetch
from metaquorum.dataplane.handlers.fetch.incremental_fetch import continue_session
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.dataplane.replication.earlier_workers import EarlierFollowers
from metaquorum.dataplane.replication.replica_authentication import fetch_claim_error
from metaquorum.dataplane.scheduling.time_slices import Steps
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from metaquorum.wire.primitives.errors import ErrorCode

_TOPIC_IDS_SINCE: Final = 13
_ISOLATION_LEVELS: Final = (0, 1)  # read_uncommitted, read_committed
# An unauthenticated replica with more partitions gets one error for the whole request.
MAX_REFUSED_ROWS: Final = 1000


class NewestMetadata(Protocol):
    @property
    def image(self) -> MetadataImage: ...


class FollowerContacts(Protocol):
    @property
    def earlier_followers(self) -> EarlierFollowers: ...

    @property
    def quotas(self) -> ReplicationQuotas: ...

    def heard_from(self, replica_id: int) -> None: ...


class Fetches(LimitsFetches, KeepsSessions, Protocol):
    """All parts that Fetch may use."""

    @property
    def loader(self) -> NewestMetadata:
        """The newest metadata received, so that a follower's registration counts at once."""

    @property
    def isr_manager(self) -> FollowerContacts: ...


def handle_fetch(
    worker: Fetches, request: Request, message: FetchRequest
) -> Answer | Steps[Answer]:
    if message.isolation_level not in _ISOLATION_LEVELS:
        return _refuse(message, ErrorCode.INVALID_REQUEST)
    replication_quotas = None
    if (replica_id := replica_of(message)) >= 0:
        image, followers = worker.loader.image, worker.isr_manager
        if error := fetch_claim_error(request.client, message, image, followers.earlier_followers):
            return _refuse(message, error)
        followers.heard_from(replica_id)
        replication_quotas = followers.quotas
    allowed = FetchAllowance(worker, request, message, replication_quotas)
    has_topic_ids = request.version >= _TOPIC_IDS_SINCE
    if not is_whole(message):
        return continue_session(worker, message, has_topic_ids, allowed)
    if message.session_id:
        worker.fetch_sessions.close(message.session_id)
    if allowed.throttle_ms:
        return FetchResponse(throttle_time_ms=allowed.throttle_ms)
    return FullFetch(worker, message, has_topic_ids, allowed).answer()


def _refuse(message: FetchRequest, error: ErrorCode) -> FetchResponse:
    """Return the error of all partitions, or of the request if it names too many."""
    row_count = sum(len(topic.partitions) for topic in message.topics)
    if error is ErrorCode.STALE_BROKER_EPOCH or row_count > MAX_REFUSED_ROWS:
        return FetchResponse(error_code=error)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(
                        partition_index=data.partition,
                        error_code=error,
                        high_watermark=-1,
                        aborted_transactions=None,
                        records=b"",
                    )
                    for data in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
