"""Bytes that a fetch may return: `max_bytes` of the request and of the worker, and the quotas."""

from typing import Final, Protocol

from metaquorum.dataplane.fetch.reader import FetchedWorker, FetchReader, replica_of
from metaquorum.dataplane.quotas.replication_quota import ReplicationQuotas
from metaquorum.dataplane.worker.capabilities import HasQuotas
from metaquorum.dataplane.worker.context import Request
from metaquorum.wire.messages.fetch import FetchRequest

_FOLLOWERS_SINCE: Final = 11  # consumers may read from followers: KIP-392


class LimitsFetches(FetchedWorker, HasQuotas, Protocol):
    """Parts for reading partitions and counting the bytes against a client's quota."""

    @property
    def fetch_max_bytes(self) -> int: ...


class FetchAllowance:
    """Bytes that the quotas allow a fetch to return.

    The quotas of clients do not limit followers (KIP-13), but those of replication do (KIP-73).

    If `throttle_ms` is not 0, the fetch reads nothing.
    """

    __slots__ = (
        "_from_followers",
        "_listener",
        "_replication_quotas",
        "_request",
        "_worker",
        "max_bytes",
        "min_bytes",
        "throttle_ms",
    )

    def __init__(
        self,
        worker: LimitsFetches,
        request: Request,
        message: FetchRequest,
        replication_quotas: ReplicationQuotas | None = None,
    ) -> None:
        """Create the allowance; `replication_quotas` for a follower, None for a consumer."""
        self.throttle_ms = 0
        self.max_bytes = min(message.max_bytes, worker.fetch_max_bytes)
        self._worker = worker
        self._listener = request.client.listener  # the client's listener
        self._from_followers = request.version >= _FOLLOWERS_SINCE and replica_of(message) == -1
        self._request: Request | None = None
        self._replication_quotas = replication_quotas
        quotas = worker.quotas
        if replication_quotas is None and quotas.is_on_for_fetches:
            self._request = request
            self.throttle_ms = quotas.may_fetch(request.client, request.client_id)
            most = quotas.fetch_bytes(request.client, request.client_id)
            if most is not None:
                self.max_bytes = min(self.max_bytes, most)
        # Bytes to wait for: at most the limit of the response.
        self.min_bytes = min(message.min_bytes, self.max_bytes)

    def reader(self, message: FetchRequest) -> FetchReader:
        return FetchReader(
            self._worker,
            self._listener,
            message,
            self.max_bytes,
            from_followers=self._from_followers,
            replication_quotas=self._replication_quotas,
        )

    def ask_again(self) -> int:
        """Return the new `throttle_ms` after a wait: other clients may have used the quota."""
        request = self._request
        if request is not None:
            quotas = self._worker.quotas
            self.throttle_ms = quotas.may_fetch(request.client, request.client_id)
        return self.throttle_ms

    def given(self, reader: FetchReader) -> None:
        """Count the bytes that the reader has read against the quotas."""
        if reader.throttled is not None:
            reader.throttled.record()
        request = self._request
        if request is not None:
            self._worker.quotas.fetched(request.client, request.client_id, reader.size_bytes)
