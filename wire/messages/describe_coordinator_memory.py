"""DescribeCoordinatorMemory (10013): budgets of a worker's coordinators. An API of this project.

A budget has the memory of the groups, the committed offsets or the transactional ids that a worker
coordinates, by client: a principal, or an address without authentication; an empty name has what
was loaded from the log, and not been used since.
"""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, int16, int32, int64, string


class DescribeCoordinatorMemoryRequest(Message, api=10013, versions="0", flexible="0+"):
    """Requests all budgets, with the `most_used` clients of each; null client: no names.

    With `budget` and `client`, also the names of what that client has: at most `most_names`.
    """

    most_used: int = int32()
    budget: str | None = string(nullable="0+", default=None)
    client: str | None = string(nullable="0+", default=None)
    most_names: int = int32()


class DescribedClient(Struct):
    """Memory of one client, estimated: the larger of the other two counts."""

    client: str = string()
    counted_bytes: int = int64()
    admitted_bytes: int = int64()
    grown_bytes: int = int64()


class DescribedBudget(Struct):
    """One budget, by the name of its config, and its clients, those with the most memory first.

    The counts of refusals are since the start of the worker: of clients that had their share, and
    of clients for which others had left nothing.
    """

    name: str = string()
    limit_bytes: int = int64()
    counted_bytes: int = int64()
    used_bytes: int = int64()
    client_count: int = int32()
    refused_share_count: int = int64()
    refused_full_count: int = int64()
    clients: list[DescribedClient] = array(DescribedClient)


class DescribeCoordinatorMemoryResponse(Message, api=10013, versions="0", flexible="0+"):
    """`names`: groups or transactional ids of the requested client."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    budgets: list[DescribedBudget] = array(DescribedBudget)
    names: list[str] = array(string)
