"""DescribeQuotaUse (10004): current usage of quotas on this worker. An API of this project.

Kafka's DescribeClientQuotas returns the quotas but not their usage. Units by quota: bytes, percent
of the worker's event loop times seconds, or connections.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import (
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
    """A client whose quotas are requested, with the delay if it used `amount` more."""

    user: str = string()
    client_id: str | None = string(nullable="0+", default=None)
    ip: str | None = string(nullable="0+", default=None)
    amount: float = float64()


class DescribeQuotaUseRequest(Message, api=10004, versions="0", flexible="0+"):
    """Requests the usage of these clients, and of the `most_used` quotas nearest to their limit."""

    clients: list[AskedClient] = array(AskedClient)
    most_used: int = int32()
    include_muted: bool = boolean()


class DescribedUse(Struct):
    """Usage of one quota by one group of clients.

    `asked`: index of the requested client, from 0; -1: one of the most used. `user`, `client_id`:
    all clients with these values share the quota; null: with any value. `precedence`: that of the
    rule that applies, from 1; 9 is the worker's default; 0 is a quota of an IP address.
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
    """A muted connection: the worker does not read from it for another `left_s` seconds."""

    host: str = string()
    port: int = int32()
    user: str = string()
    client_id: str | None = string(nullable="0+", default=None)
    quota_key: str = string()
    throttle_s: float = float64()
    left_s: float = float64()


class DescribeQuotaUseResponse(Message, api=10004, versions="0", flexible="0+"):
    """`left_out`: number of quotas and muted connections omitted because of their number."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    uses: list[DescribedUse] = array(DescribedUse)
    muted: list[MutedConnection] = array(MutedConnection)
    left_out: int = int32()
