"""Current use of client quotas on one worker. Only metaquorum serves this API."""

from collections.abc import Mapping, Sequence

from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import broker_error
from metaquorum.wire.primitives.frozen import frozen


@frozen
class QuotaClient:
    """A client whose quota use is requested. `amount`: bytes that it would use next."""

    user: str
    client_id: str | None = None
    ip: str | None = None
    amount: float = 0.0


@frozen
class QuotaUse:
    """Use of one quota on one worker, by all clients with this user and client id (None: any).

    `precedence`: precedence of the quota that applies, from 1; 9: the default of the worker; 0: a
    quota of an IP address. Units are bytes, percent of the event loop's time times seconds, or
    connections; `quota` and `rate` are units per second.
    """

    worker: int
    key: str
    user: str | None
    client_id: str | None
    ip: str | None
    precedence: int
    quota: float
    used: float  # units within the window
    used_total: float  # units since the worker began to count
    window_s: float
    delay_s: float  # throttle time of a request now
    next_delay_s: float  # throttle time after using `amount` more
    throttle_count: int
    throttle_total_s: float
    throttle_longest_s: float
    throttle_recent_s: float  # mean within the window

    @property
    def rate(self) -> float:
        """Mean use within the window, in units per second."""
        return self.used / self.window_s

    @property
    def utilization(self) -> float:
        """Rate divided by quota; above 1 the client violates the quota.

        A delay means that it does, by its earlier use, also if nothing is left in the window.
        """
        least = 1 + self.delay_s / self.window_s if self.delay_s > 0 else 0.0
        return max(self.rate / self.quota, least)


@frozen
class MutedConnection:
    """A connection that a worker has muted because of a quota violation."""

    worker: int
    host: str
    port: int
    user: str
    client_id: str | None
    key: str
    throttle_s: float  # throttle time in the response to the client
    left_s: float  # remaining time


@frozen
class WorkerQuotaUse:
    """Quota use on one worker.

    `of_clients`: by the index of the client in the request. `left_out`: number of rows that the
    worker left out of the response.
    """

    worker: int
    of_clients: Mapping[int, Sequence[QuotaUse]]
    most_used: Sequence[QuotaUse]
    muted: Sequence[MutedConnection]
    left_out: int


async def describe_quota_use(
    cluster: Cluster,
    worker: int,
    clients: Sequence[QuotaClient],
    *,
    most_used: int,
    include_muted: bool,
) -> WorkerQuotaUse:
    """Return the quota use on one worker; see `AdminClient.describe_quota_use`.

    Raises NotServedError if the cluster is Apache Kafka, and BrokerError if the worker refuses.
    """
    from metaquorum.wire.messages.describe_quota_use import (
        AskedClient,
        DescribeQuotaUseRequest,
        DescribeQuotaUseResponse,
    )

    request = DescribeQuotaUseRequest(
        clients=[
            AskedClient(user=one.user, client_id=one.client_id, ip=one.ip, amount=one.amount)
            for one in clients
        ],
        most_used=most_used,
        include_muted=include_muted,
    )
    response: DescribeQuotaUseResponse = await cluster.call(request, to=worker)
    if response.error_code:
        raise broker_error(response.error_code, response.error_message, f"worker {worker}")
    of_clients: dict[int, list[QuotaUse]] = {number: [] for number in range(len(clients))}
    most: list[QuotaUse] = []
    for row in response.uses:
        use = QuotaUse(
            worker,
            row.quota_key,
            row.user,
            row.client_id,
            row.ip,
            row.precedence,
            row.quota,
            row.used,
            row.used_total,
            row.window_s,
            row.delay_s,
            row.next_delay_s,
            row.throttle_count,
            row.throttle_total_s,
            row.throttle_longest_s,
            row.throttle_recent_s,
        )
        of_clients.get(row.asked, most).append(use)
    muted = [
        MutedConnection(
            worker,
            row.host,
            row.port,
            row.user,
            row.client_id,
            row.quota_key,
            row.throttle_s,
            row.left_s,
        )
        for row in response.muted
    ]
    return WorkerQuotaUse(worker, of_clients, most, muted, response.left_out)
