"""Administration of groups, as one class."""

from collections.abc import Mapping, Sequence

from metaquorum.client.cluster import Answers, Cluster, TopicPartition
from metaquorum.client.groups.coordinators import Outcomes
from metaquorum.client.groups.explanation.activity import GroupActivity, describe_activity
from metaquorum.client.groups.explanation.facts import GroupFacts, gather
from metaquorum.client.groups.explanation.unread import Unread, describe_unread
from metaquorum.client.groups.lag import describe_lag
from metaquorum.client.groups.offsets import (
    Committed,
    commit_offsets,
    committed_offsets,
    delete_groups,
    delete_offsets,
)
from metaquorum.client.groups.queries import describe_groups, list_groups
from metaquorum.client.groups.reset import Reset, ResetPlan, plan_offsets, plan_reset
from metaquorum.client.groups.values import GroupDescription, GroupLag, GroupList


class GroupAdmin:
    """Administration of the groups of one cluster; `metaquorum.client.administration.admin`
    explains errors."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> GroupList:
        """Return the groups of all nodes with one of these states and types (empty: any)."""
        return await list_groups(self.cluster, states, types)

    async def describe_groups(self, groups: Sequence[str]) -> Outcomes[GroupDescription]:
        """Return the state and members of each group of the classic protocol."""
        return await describe_groups(self.cluster, groups)

    async def describe_lag(self, groups: Sequence[str]) -> Outcomes[GroupLag]:
        """Return the lag of each group in the partitions that it owns or has committed."""
        return await describe_lag(self.cluster, groups)

    async def describe_activity(self, groups: Sequence[str]) -> Outcomes[GroupActivity]:
        """Return the members that each group waits for, and its last rebalances.

        Raises NotServedError if the cluster is Apache Kafka; so do the next two methods.
        """
        return await describe_activity(self.cluster, groups)

    async def describe_unread(self, offsets: Mapping[TopicPartition, int]) -> Answers[Unread]:
        """Return the records that follow the offset of each partition."""
        return await describe_unread(self.cluster, offsets)

    async def gather_facts(self, group: str, *, sample_s: float) -> GroupFacts:
        """Return the facts about a group for `explanation.explain`.

        Its progress is read twice, `sample_s` seconds apart. Raises BrokerError if the group does
        not exist or its coordinator refuses.
        """
        return await gather(self.cluster, group, sample_s=sample_s)

    async def committed_offsets(self, groups: Sequence[str]) -> Outcomes[Committed]:
        """Return the committed offsets of each group; none for a group that does not exist."""
        return await committed_offsets(self.cluster, groups)

    async def plan_reset(
        self, group: str, partitions: Sequence[TopicPartition], reset: Reset
    ) -> ResetPlan:
        """Return the new offset of each partition; `commit_offsets` makes the change.

        Raises BrokerError if the group has members or cannot be read.
        """
        return await plan_reset(self.cluster, group, partitions, reset)

    async def plan_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> ResetPlan:
        """Return the plan for given offsets. Raises BrokerError as `plan_reset`."""
        return await plan_offsets(self.cluster, group, offsets)

    async def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> Answers[None]:
        """Commit offsets for a group without members; None for each committed partition."""
        return await commit_offsets(self.cluster, group, offsets)

    async def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Answers[None]:
        """Delete committed offsets of topics that no member subscribes to; None if deleted."""
        return await delete_offsets(self.cluster, group, partitions)

    async def delete_groups(self, groups: Sequence[str]) -> Outcomes[None]:
        """Delete groups without members and their offsets; None for each deleted group."""
        return await delete_groups(self.cluster, groups)
