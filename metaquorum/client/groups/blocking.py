"""Administration of groups without an event loop."""

from metaquorum.client.cluster import Cluster
from metaquorum.client.groups.admin import GroupAdmin
from metaquorum.client.socket_transport import Blocking, blocking


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
