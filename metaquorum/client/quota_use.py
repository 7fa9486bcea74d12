"""What is used of quotas now, which only workers of metaquorum tell."""

from collections.abc import Mapping, Sequence

from metaquorum.client.cluster import Cluster
from metaquorum.client.errors import broker_error
from wire.primitives.frozen import frozen


@frozen
class QuotaClient:
    """Whom to look at, and how much more it might use: bytes."""

    user: str
    client_id: str | None = None
    ip: str | None = None
    amount: float = 0.0


@frozen
class QuotaUse:
    """One allowance on one worker, of all clients with that user and client id (None: any).

    `precedence`: of the rule that applies, from 1; 9: the worker's own default; 0: an address's.
    Units are bytes, seconds of a percent of the loop, or connections; `quota` and `rate` are a
    second.
    """

    worker: int
    key: str
    user: str | None
    client_id: str | None
    ip: str | None
    precedence: int
    quota: float
    used: float  # units within the window
    used_total: float  # since the worker counts it
    window_s: float
    delay_s: float  # of whoever asks now
    next_delay_s: float  # of whoever has used the amount that was asked about
    throttle_count: int
    throttle_total_s: float
    throttle_longest_s: float
    throttle_recent_s: float  # mean, within the window

    @property
    def rate(self) -> float:
        return self.used / self.window_s

    @property
    def utilization(self) -> float:
        """The rate as a part of the quota."""
        return self.rate / self.quota


@frozen
class MutedConnection:
    """One that a worker does not read for a while."""

    worker: int
    host: str
    port: int
    user: str
    client_id: str | None
    key: str
    throttle_s: float  # as the client was told
    left_s: float


@frozen
class WorkerQuotaUse:
    """`of_clients`: by the client's place among those asked about."""

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
    """NotServedError by any Kafka; BrokerError."""
    from wire.messages.describe_quota_use import (
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
