"""`open_group_consumer` for trio programs and the simulator: heartbeats are a task."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from metaquorum.client.cluster import Cluster
from metaquorum.client.groups.group_config import GroupConfig
from metaquorum.client.groups.group_consumer import (
    LEAVE_TIMEOUT_S,
    GroupConsumer,
    RebalanceListener,
)
from metaquorum.client.groups.heartbeats import Heartbeats


@asynccontextmanager
async def open_group_consumer(
    cluster: Cluster,
    config: GroupConfig,
    topics: Iterable[str] | re.Pattern[str],
    listener: RebalanceListener | None = None,
) -> AsyncIterator[GroupConsumer]:
    """Yield a consumer that joins its group at the first poll; close it at the end of the block.

    A cancelled block also leaves the group, which may take LEAVE_TIMEOUT_S seconds. All waiting is
    on the clock of the cluster's transport.
    """
    consumer = GroupConsumer(cluster, config)
    consumer.subscribe(topics, listener)
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_beat, cluster, consumer.heartbeats)
            try:
                yield consumer
            except BaseException as error:  # noqa: BLE001 - raised below, outside of the group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        with trio.CancelScope(shield=True):
            await consumer.close(LEAVE_TIMEOUT_S)


async def _beat(cluster: Cluster, heartbeats: Heartbeats) -> None:
    try:
        while True:
            await cluster.transport.sleep_until(await heartbeats.beat())
    finally:
        heartbeats.close()
