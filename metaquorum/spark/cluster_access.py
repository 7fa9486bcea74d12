"""Connections of a load to its cluster, over blocking sockets."""

from collections.abc import Iterator
from contextlib import contextmanager

from metaquorum.client.cluster import Cluster
from metaquorum.client.socket_transport import connect
from metaquorum.spark.options import Connecting


@contextmanager
def open_cluster(connecting: Connecting) -> Iterator[Cluster]:
    """Hold the cluster's connections open while the block runs; the first call connects.

    Blocking. Raises ValueError if the bootstrap addresses or the TLS files cannot be used.
    """
    with connect(
        connecting.bootstrap,
        client_id=connecting.client_id,
        timeout_s=connecting.timeout_s,
        security=connecting.security,
    ) as cluster:
        yield cluster
