"""Administration of groups, and membership in them, without an event loop."""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.groups.admin import GroupAdmin
from metaquorum.client.groups.group_config import GroupConfig
from metaquorum.client.groups.group_consumer import (
    LEAVE_TIMEOUT_S,
    GroupConsumer,
    RebalanceListener,
)
from metaquorum.client.socket_transport import Blocking, blocking, wait


class BlockingGroupAdmin(Blocking[GroupAdmin]):
    """`GroupAdmin` with blocking methods."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(GroupAdmin(cluster))

    list_groups = blocking(GroupAdmin.list_groups)
    describe_groups = blocking(GroupAdmin.describe_groups)
    describe_lag = blocking(GroupAdmin.describe_lag)
    describe_activity = blocking(GroupAdmin.describe_activity)
    describe_unread = blocking(GroupAdmin.describe_unread)
    gather_facts = blocking(GroupAdmin.gather_facts)
    committed_offsets = blocking(GroupAdmin.committed_offsets)
    plan_reset = blocking(GroupAdmin.plan_reset)
    plan_offsets = blocking(GroupAdmin.plan_offsets)
    commit_offsets = blocking(GroupAdmin.commit_offsets)
    delete_offsets = blocking(GroupAdmin.delete_offsets)
    delete_groups = blocking(GroupAdmin.delete_groups)


class BlockingGroupConsumer(Blocking[GroupConsumer]):
    """`GroupConsumer` with blocking methods; `client` has those that do not block.

    Heartbeats are sent by a thread while the program processes records. The rest of the membership
    happens in `poll`: a rebalance waits for the next poll of each member, and a member whose
    JoinGroup is not answered yet sends no heartbeats between two polls.
    """

    poll = blocking(GroupConsumer.poll)
    position = blocking(GroupConsumer.position)
    committed = blocking(GroupConsumer.committed)
    commit = blocking(GroupConsumer.commit)
    start_commit = blocking(GroupConsumer.start_commit)

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """Partitions that are assigned to this consumer."""
        return self.client.assignment


@contextmanager
def open_group_consumer(
    cluster: Cluster,
    config: GroupConfig,
    topics: Iterable[str] | re.Pattern[str],
    listener: RebalanceListener | None = None,
) -> Iterator[BlockingGroupConsumer]:
    """Yield a consumer that joins its group at the first poll; close it at the end of the block.

    A daemon thread sends the heartbeats; it ends with the block. The methods of `listener` are
    plain ones, and may call the blocking methods of the consumer but `poll`.
    """
    consumer = GroupConsumer(cluster, config)
    consumer.subscribe(topics, listener)
    ending = threading.Event()

    def beat() -> None:
        due = 0.0
        while not ending.wait(max(0.0, due - cluster.transport.monotonic())):
            due = wait(consumer.heartbeats.beat())
        consumer.heartbeats.close()

    thread = threading.Thread(target=beat, name=f"heartbeats of {config.group}", daemon=True)
    thread.start()
    try:
        yield BlockingGroupConsumer(consumer)
    finally:
        ending.set()
        thread.join(LEAVE_TIMEOUT_S)
        wait(consumer.close(LEAVE_TIMEOUT_S))
