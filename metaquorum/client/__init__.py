"""Client for any Kafka-compatible cluster: administration, producer and consumer.

In a trio program:

    async with connect("127.0.0.1:9092") as cluster:
        admin = AdminClient(cluster)
        for topic in await admin.topics():
            print(topic.name, len(topic.partitions))

Programs without an event loop use `metaquorum.client.socket_transport`. `connect(..., runtime=...)`
takes the interfaces of a simulated machine.

`Consumer` reads the partitions that it is assigned; `groups` has a consumer that joins a group, and
`transactions` a producer whose records and offsets take effect together.

Deliberately absent: groups of KIP-848. `Producer` has one batch per partition in
flight at a time.

Imports `metaquorum.security`, `metadata` and below, not the rest of the quorum. Network I/O in
`trio_transport` and `socket_transport` only. Start with `cluster` (connections and metadata) and
`administration.admin`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from metaquorum.client.cluster import DEFAULT_TIMEOUT_S, Cluster, Node, TopicPartition
from metaquorum.client.errors import (
    AdminError,
    BrokerError,
    InterruptedChangeError,
    NotServedError,
    UnreachableError,
)
from metaquorum.client.security import PLAINTEXT, Login, Security, Tls
from metaquorum.client.throttling import ThrottleTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from metaquorum.runtime.interfaces import Runtime

__all__ = [
    "AdminError",
    "BrokerError",
    "Cluster",
    "InterruptedChangeError",
    "Login",
    "Node",
    "NotServedError",
    "Security",
    "ThrottleTimes",
    "Tls",
    "TopicPartition",
    "UnreachableError",
    "connect",
]


@asynccontextmanager
async def connect(
    bootstrap: str | Sequence[tuple[str, int]],
    *,
    client_id: str = "metaquorum",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    runtime: Runtime | None = None,
    security: Security = PLAINTEXT,
) -> AsyncIterator[Cluster]:
    """Yield a cluster and close its connections at the end of the block.

    The first call opens the first connection. `bootstrap`: addresses as "host:port,host:port" or as
    pairs. `timeout_s`: timeout of one call, with all its retries, in seconds. Raises ValueError if
    an address is malformed or the TLS files cannot be used.
    """
    from metaquorum.client.trio_transport import TrioTransport

    if runtime is None:
        from metaquorum.runtime.system import real_runtime

        runtime = real_runtime()
    cluster = Cluster(
        TrioTransport(
            runtime.clock,
            runtime.network,
            None if security.tls is None else security.tls.context(),
        ),
        bootstrap,
        client_id=client_id,
        timeout_s=timeout_s,
        random=runtime.random,
        login=security.login,
    )
    try:
        yield cluster
    finally:
        cluster.close()
