"""DescribeQuotaUse: the current use of quotas on this worker, to explain why clients are throttled.

The API is this project's own, not Kafka's.
"""

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final, Protocol

import trio

from metaquorum.config.addresses import canonical
from metaquorum.dataplane.quotas.muting import ClientName
from metaquorum.dataplane.quotas.quota_status import QuotaStatus, QuotaUsage
from metaquorum.dataplane.worker.capabilities import HasControllerClient, HasQuotas
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.quota_lookup import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OBSERVED,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from metaquorum.quorum.controller.mutation_quotas import MutationUse
from metaquorum.quorum.rpc.methods import DESCRIBE_MUTATIONS, DescribeMutations
from metaquorum.wire.messages.describe_quota_use import (
    AskedClient,
    DescribedUse,
    DescribeQuotaUseRequest,
    DescribeQuotaUseResponse,
    MutedConnection,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

MAX_CLIENTS: Final = 100  # in one request
MAX_USES: Final = 1000  # allowances, and muted connections, in one response
MAX_LOOKED_AT: Final = 100_000
SLICE_USES: Final = 100
ASK_S: Final = 5.0  # timeout of a request to the controller
_RATES: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
_KEYS: Final = (*_RATES, *[OBSERVED + key for key in _RATES])


class DescribesQuotaUse(HasControllerClient, HasQuotas, Protocol):
    """Capability to read the use of quotas here, and of mutation quotas at the controller."""


async def handle_describe_quota_use(
    worker: DescribesQuotaUse, request: Request, message: DescribeQuotaUseRequest
) -> DescribeQuotaUseResponse:
    if len(message.clients) > MAX_CLIENTS:
        return DescribeQuotaUseResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"a request may name at most {MAX_CLIENTS} clients",
        )
    status = QuotaStatus(worker.quotas)
    response = DescribeQuotaUseResponse()
    for number, client in enumerate(message.clients):
        response.uses += _of_client(worker, status, number, client)
        response.uses += await _mutations(worker, number, client)
    if message.most_used > 0:
        uses = []
        for number, use in enumerate(islice(status.uses(), MAX_LOOKED_AT), 1):
            uses.append(use)
            if number % SLICE_USES == 0:
                await trio.lowlevel.checkpoint()
        most = nlargest(min(message.most_used, MAX_USES), uses, key=lambda u: u.rate / u.quota)
        response.uses += [_row(use) for use in most]
        response.left_out += len(uses) - len(most)
        response.uses += await _most_mutations(worker, min(message.most_used, MAX_USES))
    if message.include_muted:
        muted = status.muted()
        response.left_out += max(0, len(muted) - MAX_USES)
        response.muted = [
            MutedConnection(
                host=one.address[0],
                port=one.address[1],
                user=_user(one.principal),
                client_id=one.client_id,
                quota_key=one.key,
                throttle_s=one.throttle_s,
                left_s=one.left_s,
            )
            for one in muted[:MAX_USES]
        ]
    return response


def _of_client(
    worker: HasQuotas, status: QuotaStatus, number: int, client: AskedClient
) -> Iterator[DescribedUse]:
    principal = f"User:{client.user}"
    for key in _KEYS:
        use = status.use(key, principal, client.client_id)
        if use is not None:
            row = _row(use)
            row.asked = number
            amount = 0.0 if key.endswith(REQUEST_PERCENTAGE) else client.amount
            row.next_delay_s = status.delay_after_s(key, principal, client.client_id, amount)
            yield row
    if client.ip is not None:
        rate = worker.quotas.connections.use(_canonical(client.ip))
        if rate is not None:
            yield DescribedUse(
                asked=number,
                quota_key=CONNECTION_CREATION_RATE,
                ip=client.ip,
                quota=rate.quota,
                used=rate.used,
                window_s=rate.window_s,
            )


async def _mutations(
    worker: DescribesQuotaUse, number: int, client: AskedClient
) -> list[DescribedUse]:
    """Return the client's use of its mutation quota, counted by the active controller.

    Empty if the client is not limited or the controller does not answer in time.
    """
    name = ClientName(f"User:{client.user}", client.client_id)
    if not worker.quotas.limits_mutations(name):
        return []
    try:
        uses = await worker.controller_client.ask(
            DESCRIBE_MUTATIONS, DescribeMutations(client.user, client.client_id), timeout_s=ASK_S
        )
    except KafkaError:
        return []
    return [_mutation_row(use, number) for use in uses]


async def _most_mutations(worker: DescribesQuotaUse, count: int) -> list[DescribedUse]:
    """Return the most used mutation quotas; the same on all workers, from the active controller."""
    if not worker.quotas.limits_any_mutations:
        return []
    try:
        uses = await worker.controller_client.ask(
            DESCRIBE_MUTATIONS, DescribeMutations("", None, most_used=count), timeout_s=ASK_S
        )
    except KafkaError:
        return []
    return [_mutation_row(use) for use in uses]


def _mutation_row(use: MutationUse, asked: int = -1) -> DescribedUse:
    return DescribedUse(
        asked=asked,
        quota_key=CONTROLLER_MUTATION_RATE,
        user=use.user,
        client_id=use.client_id,
        precedence=use.precedence,
        quota=use.quota,
        used=use.quota * use.window_s - use.tokens,
        window_s=use.window_s,
        delay_s=max(0.0, -use.tokens / use.quota),
        next_delay_s=max(0.0, -use.tokens / use.quota),
    )


def _row(use: QuotaUsage) -> DescribedUse:
    return DescribedUse(
        quota_key=use.key,
        user=use.rule.sharers.user,
        client_id=use.rule.sharers.client_id,
        precedence=use.rule.precedence,
        quota=use.quota,
        used=use.used,
        used_total=use.used_total,
        window_s=use.window_s,
        delay_s=use.delay_s,
        throttle_count=use.throttle_count,
        throttle_total_s=use.throttle_total_s,
        throttle_longest_s=use.throttle_longest_s,
        throttle_recent_s=use.throttle_recent_s,
    )


def _user(principal: str) -> str:
    return principal.removeprefix("User:")


def _canonical(ip: str) -> str:
    try:
        return canonical(ip)
    except ValueError:
        return ip
