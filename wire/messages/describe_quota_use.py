"""DescribeQuotaUse (10004): what is used of quotas on this worker now. An API of our own.

Which quotas there are DescribeClientQuotas tells for any Kafka; what is used of them, nobody else.
Units are bytes, seconds of a percent of the worker's loop, or connections.
"""

from __future__ import annotations

from wire.schema.message import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
)


class AskedClient(Struct):
    """What would delay such a client, and for how long if it used `amount` more."""

    user: str = string()
    client_id: str | None = string(nullable="0+", default=None)
    ip: str | None = string(nullable="0+", default=None)
    amount: float = float64()


class DescribeQuotaUseRequest(Message, api=10004, versions="0", flexible="0+"):
    """Of these clients, and of those allowances that are nearest to their limit or beyond."""

    clients: list[AskedClient] = array(AskedClient)
    most_used: int = int32()
    include_muted: bool = boolean()


class DescribedUse(Struct):
    """One allowance. `asked`: of which of the clients asked for, from 0; -1: among the most used.

    `user`, `client_id`: all clients that have these share it; null: whatever they have there.
    `precedence`: of the rule that applies, from 1; 9 is the worker's own default; 0 an address.
    """

    asked: int = int32(default=-1)
    quota_key: str = string()
    user: str | None = string(nullable="0+", default=None)
    client_id: str | None = string(nullable="0+", default=None)
    ip: str | None = string(nullable="0+", default=None)
    precedence: int = int8()
    quota: float = float64()
    used: float = float64()
    used_total: float = float64()
    window_s: float = float64()
    delay_s: float = float64()
    next_delay_s: float = float64()
    throttle_count: int = int64()
    throttle_total_s: float = float64()
    throttle_longest_s: float = float64()
    throttle_recent_s: float = float64()


class MutedConnection(Struct):
    """A connection that is not read until so much time has passed."""

    host: str = string()
    port: int = int32()
    user: str = string()
    client_id: str | None = string(nullable="0+", default=None)
    quota_key: str = string()
    throttle_s: float = float64()
    left_s: float = float64()


class DescribeQuotaUseResponse(Message, api=10004, versions="0", flexible="0+"):
    """`left_out`: allowances and muted connections that are too many to be told."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    uses: list[DescribedUse] = array(DescribedUse)
    muted: list[MutedConnection] = array(MutedConnection)
    left_out: int = int32()
