"""Consumer that shares the partitions of its topics with the other members of a group.

`trio_consumer.open_group_consumer` and `blocking.open_group_consumer` open one, and send its
heartbeats. Everything else happens in the calls of the program, above all in `poll`:

    take the outcomes of heartbeats -> commit, if due -> join, sync, assign -> positions -> fetch

`poll` does not wait for a rebalance longer than its time: the program polls again. A cooperative
member continues with the records of its partitions meanwhile.

At most one task or thread calls a consumer at a time. The records of a poll count as processed at
the next poll, which may commit them; `group_member` has the rules of the group.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from metaquorum.client.administration.admin import EARLIEST, LATEST
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.consumer import MAX_WAIT_S, ConsumedRecord, Consumer
from metaquorum.client.errors import AdminError, BrokerError, UnreachableError
from metaquorum.client.groups.assigned_partitions import AssignedPartitions
from metaquorum.client.groups.assignors import ASSIGNORS
from metaquorum.client.groups.coordinator_link import GLANCE_S, CoordinatorLink
from metaquorum.client.groups.coordinators import subject
from metaquorum.client.groups.group_config import GroupConfig, OffsetReset
from metaquorum.client.groups.group_member import (
    RETRY_PAUSE_S,
    GroupMember,
    Reaction,
    State,
    member_error,
    reaction_to,
)
from metaquorum.client.groups.heartbeats import Heartbeats, HeartbeatTarget
from metaquorum.client.groups.offsets import (
    commit_request,
    committed_of_partitions,
    fetch_request,
    first_commit_error,
)
from metaquorum.client.groups.subscribed_topics import ABSENT_TOPIC_AGE_S, GONE, SubscribedTopics
from metaquorum.client.groups.values import CommittedOffset, GroupMetadata
from metaquorum.wire.primitives.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.wire.messages.leave_group import LeaveGroupRequest
    from metaquorum.wire.messages.offset_commit import OffsetCommitResponse
    from metaquorum.wire.messages.offset_fetch import OffsetFetchResponse

Offsets: TypeAlias = Mapping[TopicPartition, int | CommittedOffset]
OnCommit: TypeAlias = Callable[[Mapping[TopicPartition, CommittedOffset], BrokerError | None], None]

# Longest fetch during a rebalance, so that its end is soon seen.
REBALANCING_WAIT_S: Final = 0.1
LEAVE_TIMEOUT_S: Final = 5.0
_NAMES_UNTIL: Final = 9  # later versions of OffsetCommit and OffsetFetch identify topics by id
# Errors after which a commit is sent again, besides those of the coordinator.
_COMMIT_RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_WHEN_RESET: Final = {OffsetReset.EARLIEST: EARLIEST, OffsetReset.LATEST: LATEST}


class NoOffsetError(AdminError):
    """Raised by `poll` with OffsetReset.NONE for partitions without a usable committed offset."""

    def __init__(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = tuple(partitions)
        names = ", ".join(map(str, partitions))
        super().__init__(f"{subject(group)} has no valid committed offset in {names}")


class LogTruncationError(AdminError):
    """Raised by `poll` with OffsetReset.NONE: records before a position are no longer in the log.

    The log has other records, or none, from `offset` on. `poll` raises again until `seek`.
    """

    def __init__(self, where: TopicPartition, position: int, offset: int) -> None:
        self.partition, self.position, self.offset = where, position, offset
        super().__init__(
            f"the log of partition {where} was truncated: the position is {position}, but records "
            f"from offset {offset} on were replaced or lost"
        )


class RebalanceListener:
    """Calls of a consumer in `poll` and `close` when its assignment changes (KIP-429).

    A method may be a plain one, or return an awaitable. `commit` works in `on_revoked`, not in
    `on_lost`. An error that a method raises is raised by `poll` or `close`.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Take additional partitions, perhaps none; every rebalance ends with this call."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Give partitions up, which no other member owns yet."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Give partitions up that another member may own already."""


class _Fetcher(Consumer):
    """Consumer that notes positions that are out of range, or after a truncation of the log."""

    def __init__(self, cluster: Cluster, *, read_committed: bool) -> None:
        super().__init__(cluster, read_committed=read_committed)
        self.out_of_range: set[TopicPartition] = set()
        self.truncated: dict[TopicPartition, CommittedOffset] = {}  # first offset that diverges

    def start_at(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Set the positions of the next poll, and clear the notes of the last one."""
        self.positions = {where: each.offset for where, each in offsets.items()}
        self.last_epochs = {where: each.leader_epoch for where, each in offsets.items()}
        self.out_of_range.clear()
        self.truncated.clear()

    def note_truncation(self, where: TopicPartition, offset: int, leader_epoch: int) -> None:
        self.truncated[where] = CommittedOffset(offset, leader_epoch)

    async def move_into_range(self, where: TopicPartition) -> None:
        self.out_of_range.add(where)

    async def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | BrokerError]:
        found = await self._admin.list_offsets(times, read_committed=self._read_committed)
        return {
            where: answer if isinstance(answer, BrokerError) else answer.offset
            for where, answer in found.items()
        }


class GroupConsumer:
    """Member of a consumer group (classic protocol). Open it with `open_group_consumer`.

    `heartbeats`: what the background sends.
    """

    def __init__(self, cluster: Cluster, config: GroupConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.heartbeats = Heartbeats(cluster, config)
        self._member = GroupMember(config)
        self._link = CoordinatorLink(cluster, config.group)
        self._partitions = AssignedPartitions()
        self._fetcher = _Fetcher(cluster, read_committed=config.read_committed)
        self._listener = RebalanceListener()
        self._topics = SubscribedTopics(
            cluster, config.metadata_max_age_s, self._member.request_rejoin
        )
        self._commit_at = 0.0
        self._positions_at = 0.0
        self._unreachable_since: float | None = None
        self._is_in_callback = False
        self._is_closed = False

    # Subscription

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        listener: RebalanceListener | None = None,
    ) -> None:
        """Replace the subscription; the next poll joins the group with it.

        A pattern is matched against the whole names of all topics that are not internal, again
        whenever metadata are fetched (`metadata_max_age_s`).
        """
        if isinstance(topics, str):
            raise TypeError("topics are a list of names, or a pattern")
        self._topics.subscribe(topics)
        self._listener = listener or RebalanceListener()
        self._member.request_rejoin("the subscription has changed")

    @property
    def subscription(self) -> frozenset[str]:
        """Subscribed topics; those that the pattern has matched so far."""
        return self._topics.names

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """Partitions that are assigned to this consumer."""
        return self._partitions.all

    @property
    def member_id(self) -> str:
        """Id that the coordinator gave to this member; empty before it has joined."""
        return self._member.identity.member_id

    @property
    def generation(self) -> int:
        """Generation of the group; -1 while this consumer is not a member."""
        return self._member.identity.generation

    @property
    def group_metadata(self) -> GroupMetadata:
        """This member, for `TransactionalProducer.send_offsets`."""
        identity = self._member.identity
        return GroupMetadata(
            self.config.group, identity.generation, identity.member_id, self.config.instance_id
        )

    # Positions

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the offset of the next record of each assigned partition with a known position."""
        return dict(self._partitions.positions())

    async def position(self, where: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns.

        Raises NotAssignedError, NoOffsetError, and the errors of `committed`.
        """
        deadline = self.cluster.deadline()
        attempt = 0
        while (position := self._partitions.position(where)) is None:
            self._positions_at = 0.0
            await self._find_positions(deadline)
            if self._partitions.position(where) is None:
                if not await self.cluster.back_off(attempt, deadline):
                    raise UnreachableError(f"the position of partition {where} is not known")
                attempt += 1
        return position

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Set the position to `offset`. Raises NotAssignedError."""
        if offset < 0:
            raise ValueError(f"{offset} is not an offset")
        self._partitions.seek(where, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the positions to the log start offsets. Raises NotAssignedError."""
        for where in partitions:
            self._partitions.request_reset(where, OffsetReset.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the positions to the ends of the logs at the next poll. Raises NotAssignedError."""
        for where in partitions:
            self._partitions.request_reset(where, OffsetReset.LATEST)

    def rewind(self) -> None:
        """Return to the committed offsets, such as after an aborted transaction."""
        for where in self._partitions.all:
            self._partitions.forget_position(where)
        self._positions_at = 0.0

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; polls still keep the membership.

        A partition that is revoked and assigned again is not paused. Raises NotAssignedError.
        """
        for where in partitions:
            self._partitions.pause(where)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again. Raises NotAssignedError."""
        for where in partitions:
            self._partitions.resume(where)

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """Paused partitions."""
        return self._partitions.paused

    # Polling

    async def poll(self, max_wait_s: float = MAX_WAIT_S) -> list[ConsumedRecord]:
        """Return the next records, in order within each partition; at most `max_poll_records`.

        Returns an empty list if there is none within `max_wait_s` seconds, which a commit, a
        callback or the lookup of the coordinator may exceed. If a log was truncated, continues at
        the first offset whose record was replaced or lost (KIP-320).

        Raises NoOffsetError and LogTruncationError (with OffsetReset.NONE), BrokerError for errors
        that no retry can end, such as FENCED_INSTANCE_ID, and UnreachableError if the coordinator
        or a leader cannot be reached for the timeout of the cluster.
        """
        self._check_open()
        self._check_not_in_callback()
        transport = self.cluster.transport
        deadline = transport.monotonic() + max_wait_s
        while True:
            self.heartbeats.polled_at = transport.monotonic()
            await self._keep_membership()
            if records := self._partitions.take(self.config.max_poll_records):
                return records
            now = transport.monotonic()
            fetchable = self._partitions.fetchable(self._topics.counts)
            wait_until = min(deadline, now + MAX_WAIT_S)
            is_settled = self._member.state is State.STABLE and not self._member.rejoin_reason
            if not is_settled:
                wait_until = min(wait_until, now + REBALANCING_WAIT_S)
            if fetchable:
                await self._fetch(fetchable, max(0.0, wait_until - now))
            elif self._link.is_waiting:
                await self._link.progress(max(wait_until, now + GLANCE_S))
            elif now < deadline:
                await transport.sleep_until(wait_until)
            if transport.monotonic() >= deadline:
                await self._keep_membership()
                return self._partitions.take(self.config.max_poll_records)

    async def _fetch(
        self, offsets: Mapping[TopicPartition, CommittedOffset], max_wait_s: float
    ) -> None:
        fetcher = self._fetcher
        fetcher.start_at(offsets)
        try:
            records = await fetcher.poll(max_wait_s)
        except BrokerError as error:
            if error.code not in GONE:
                raise
            self._topics.expire()  # a topic was deleted: the leader assigns without it
            await self.cluster.back_off(0, self.cluster.deadline())
            return
        self._partitions.add(records, fetcher.positions, fetcher.last_epochs)
        for where in fetcher.out_of_range:
            self._partitions.request_reset(where, self.config.auto_offset_reset)
        for where, found in fetcher.truncated.items():
            if self.config.auto_offset_reset is OffsetReset.NONE:
                raise LogTruncationError(where, offsets[where].offset, found.offset)
            # As Kafka's consumer: from the first offset with other records than those that were
            # read, not by the reset, which would skip them or read all others again.
            self._partitions.seek(where, found.offset, found.leader_epoch)

    # Membership

    async def _keep_membership(self) -> None:
        """Take every step of the membership that is possible without waiting for other members."""
        self._take_heartbeats()
        self._member.raise_failure()
        while await self._link.progress(self._now() + GLANCE_S):
            pass
        await self._topics.refresh(self._member.members)
        await self._auto_commit_if_due()
        while await self._step():
            self._member.raise_failure()
        self._member.raise_failure()
        await self._find_positions(self.cluster.deadline())

    async def _step(self) -> bool:
        """Take the next step of a rebalance; return whether another may follow."""
        member = self._member
        if member.state is State.JOINED:
            assignments = await self._assign() if member.is_leader else {}
            return await self._submit_sync(assignments)
        if member.state is State.SYNCED:
            await self._take_assignment()
            return True
        if member.state in (State.JOINING, State.SYNCING):
            return await self._link.progress(self._now() + GLANCE_S)
        if not member.is_join_due(self._now()) or not (
            self._topics.names or member.identity.member_id
        ):
            return False
        await self._prepare_to_join()
        if not await self._open_link():
            return False
        if not member.is_join_due(self._now()):
            return True  # the commit before it has changed the membership
        request = member.join_request(self._topics.names, self._partitions.all)
        self.heartbeats.target = None
        await self._link.submit(request, self._on_join, self.cluster.deadline())
        return True

    async def _prepare_to_join(self) -> None:
        """Commit, and give up the partitions that do not stay; again before each attempt."""
        member, owned = self._member, self._partitions.all
        if not member.has_lost:
            await self._auto_commit(self._partitions.positions())
            self._take_heartbeats()
        if member.has_lost:
            self.heartbeats.target = None
            await self._give_up(owned)
        elif member.is_cooperative:
            await self._give_up([where for where in owned if where.topic not in self._topics.names])
        else:
            await self._give_up(owned)

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the listener with partitions, and own them no more."""
        if not partitions:
            return
        left = set(self._partitions.all).difference(partitions)
        try:
            if self._member.has_lost:
                await self._call(self._listener.on_lost, partitions)
            else:
                await self._call(self._listener.on_revoked, partitions)
        finally:
            self._partitions.assign(left)

    async def _call(
        self,
        method: Callable[[Sequence[TopicPartition]], Awaitable[None] | None],
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._is_in_callback = True
        try:
            result = method(tuple(partitions))
            if result is not None:
                await result
        finally:
            self._is_in_callback = False

    def _on_join(self, response: object) -> None:
        member = self._member
        reaction = None
        if response is None:
            member.on_disconnect(self._now())
        else:
            reaction = member.on_join(response, self._now())  # type: ignore[arg-type]
        self._after(reaction)

    async def _submit_sync(self, assignments: Mapping[str, Sequence[TopicPartition]]) -> bool:
        if not self._link.is_open or self._link.node is None:
            # The connection failed after the response to JoinGroup: begin again with its member id.
            self._member.state = State.SYNCING
            self._member.on_disconnect(self._now())
            return False
        request = self._member.sync_request(assignments)
        self.heartbeats.target = HeartbeatTarget(
            self._member.identity,
            self._link.node,
            tuple(self.cluster.nodes.values()),
            self._member.heartbeat_request(),
            self._leave_request("the consumer did not poll in time"),
        )
        await self._link.submit(request, self._on_sync, self.cluster.deadline())
        return True

    def _on_sync(self, response: object) -> None:
        reaction = None
        if response is None:
            self._member.on_disconnect(self._now())
        else:
            reaction = self._member.on_sync(response, self._now())  # type: ignore[arg-type]
        self._after(reaction)

    def _after(self, reaction: Reaction | None) -> None:
        if reaction is Reaction.FIND_COORDINATOR:
            self._link.lose()
        if not self._member.is_in_session:
            self.heartbeats.target = None

    async def _assign(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions of each member, as the leader of the group."""
        member = self._member
        counts = await self._topics.counts_to_assign(member.members)
        if member.skips_assignment:  # a static leader that came back (KIP-814)
            return {}
        existing = {topic: count for topic, count in counts.items() if count}
        return ASSIGNORS[member.protocol].assign(member.members, existing)

    async def _take_assignment(self) -> None:
        """Change to the new assignment and call the listener."""
        member = self._member
        assigned = [w for w in member.take_assignment() if w.topic in self._topics.names]
        owned = self._partitions.all
        if revoked := [where for where in owned if where not in assigned]:
            # Before the rest, which may raise or be cancelled: the assignment is then repeated.
            member.request_rejoin("gives up partitions for other members")
            positions = self._partitions.positions()
            await self._auto_commit({w: positions[w] for w in revoked if w in positions})
            await self._give_up(revoked)
        added = [where for where in assigned if where not in owned]
        self._partitions.assign(assigned)
        if not member.is_leader:
            self._topics.forget_assigned()
        interval = self.config.auto_commit_interval_s
        if interval is not None:
            self._commit_at = self._now() + interval
        self._positions_at = 0.0
        await self._call(self._listener.on_assigned, added)

    def _take_heartbeats(self) -> None:
        outcomes = self.heartbeats.outcomes
        while outcomes:
            outcome = outcomes.popleft()
            if outcome.has_timed_out:
                self._member.on_poll_timeout(outcome.identity)
            else:
                self._member.on_error(outcome.identity, outcome.error_code, self._now())
        if not self._member.is_in_session:
            self.heartbeats.target = None

    async def _open_link(self) -> bool:
        """Connect to the coordinator; return False if a later call must try again.

        Raises the error that has lasted for the timeout of the cluster.
        """
        if self._link.is_open:
            return True
        try:
            await self._link.open(self.cluster.deadline())
        except (BrokerError, UnreachableError) as error:
            is_final = isinstance(error, BrokerError) and not error.retriable
            now = self._now()
            if self._unreachable_since is None:
                self._unreachable_since = now
            if is_final or now - self._unreachable_since >= self.cluster.timeout_s:
                self._unreachable_since = None
                raise
            self._member.retry_at = now + RETRY_PAUSE_S
            return False
        self._unreachable_since = None
        return True

    # Offsets

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the offset that the group has committed for each partition; None without one.

        Raises BrokerError if the coordinator refuses, and UnreachableError.
        """
        self._check_open()
        return await self._committed(list(partitions), self.cluster.deadline(timeout_s))

    async def _committed(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        attempt = 0
        while True:
            try:
                self._check_settled()
                await self._link.open(deadline)
                request, last = fetch_request(
                    self.config.group,
                    partitions,
                    self._link.version_of,
                )
                response: OffsetFetchResponse = await self._link.ask(
                    request, deadline, max_version=last
                )
                found = committed_of_partitions(response, self.config.group)
            except UnreachableError as error:
                failure: Exception = error
            else:
                if not isinstance(found, BrokerError):
                    return {where: found.get(where) for where in partitions}
                if reaction_to(found) is Reaction.FIND_COORDINATOR:
                    self._link.lose()
                elif not found.retriable:
                    raise found
                failure = found
            if not await self.cluster.back_off(attempt, deadline):
                raise failure
            attempt += 1

    async def _find_positions(self, deadline: float) -> None:
        """Find the positions of partitions without one: the committed offset, or by the reset."""
        now = self._now()
        if now < self._positions_at or self._member.state in (State.JOINING, State.SYNCING):
            return
        if unknown := self._partitions.without_position():
            found = await self._committed(unknown, deadline)
            for where, offset in found.items():
                if offset is not None:
                    self._partitions.seek(where, offset.offset, offset.leader_epoch)
                else:
                    self._partitions.request_reset(where, self.config.auto_offset_reset)
        resets = self._partitions.awaiting_reset()
        if forbidden := [where for where, reset in resets.items() if reset is OffsetReset.NONE]:
            for where in forbidden:  # the next poll reads the committed offset again
                self._partitions.forget_position(where)
            raise NoOffsetError(self.config.group, forbidden)
        if not resets:
            return
        times = {where: _WHEN_RESET[reset] for where, reset in resets.items()}
        try:
            answers = await self._fetcher.offsets_at(times)
        except BrokerError as error:
            if error.code not in GONE:
                raise
            self._topics.expire()
            self._positions_at = now + ABSENT_TOPIC_AGE_S
            return
        for where, answer in answers.items():
            if isinstance(answer, BrokerError):
                if not answer.retriable:
                    raise answer
                self._positions_at = now + RETRY_PAUSE_S
            elif where in self._partitions:
                self._partitions.seek(where, answer)

    # Commits

    async def commit(
        self, offsets: Offsets | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit offsets, of the next records to read; None: the positions of all partitions.

        Returns when the coordinator has stored them. Raises BrokerError: REBALANCE_IN_PROGRESS
        (poll, which completes the rebalance, then commit again), UNKNOWN_MEMBER_ID or
        ILLEGAL_GENERATION (the partitions were lost, and another member reads the records again),
        FENCED_INSTANCE_ID, or the first error of a partition. Raises UnreachableError if retries
        fail until the timeout; the offsets may then be stored.
        """
        self._check_open()
        wanted = self._wanted(offsets)
        if wanted:
            await self._commit(wanted, self.cluster.deadline(timeout_s))

    async def start_commit(
        self, offsets: Offsets | None = None, on_complete: OnCommit | None = None
    ) -> None:
        """Send a commit and do not wait for its response; a lost one is not repeated.

        A later `poll`, `commit` or `close` calls `on_complete` with the offsets, and the error or
        None. Raises BrokerError as `commit` while the group rebalances.
        """
        self._check_open()
        wanted = self._wanted(offsets)
        if not wanted:
            return
        self._check_may_commit()
        deadline = self.cluster.deadline()
        if not self._link.is_open:
            await self._link.open(deadline)
        await self._submit_commit(wanted, on_complete or _ignore, deadline)

    def _wanted(self, offsets: Offsets | None) -> dict[TopicPartition, CommittedOffset]:
        if offsets is None:
            return self._partitions.positions()
        return {
            where: offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
            for where, offset in offsets.items()
        }

    async def _submit_commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        on_complete: OnCommit,
        deadline: float,
    ) -> None:
        member, config = self._member, self.config
        identity = member.identity
        request = commit_request(
            config.group,
            offsets,
            generation=identity.generation,
            member_id=identity.member_id,
            instance_id=config.instance_id,
        )

        def handle(response: OffsetCommitResponse | None) -> None:
            if response is None:
                text = "the connection to the coordinator failed; the offsets may be committed"
                lost = BrokerError(ErrorCode.NETWORK_EXCEPTION, text, subject(config.group))
                on_complete(offsets, lost)
                return
            error = first_commit_error(response, config.group)
            if error is not None:
                reaction = reaction_to(error)
                if reaction is not Reaction.FAIL or error.code is ErrorCode.FENCED_INSTANCE_ID:
                    error = member_error(error.code, config.group)
                    member.on_error(identity, error.code, self._now())
                if error.code is ErrorCode.REQUEST_TIMED_OUT:
                    reaction = Reaction.FIND_COORDINATOR
                self._after(reaction)
            on_complete(offsets, error)

        await self._link.submit(request, handle, deadline, max_version=_NAMES_UNTIL)

    async def _commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: float,
        retried: frozenset[ErrorCode] = _COMMIT_RETRIED,
    ) -> None:
        attempt = 0
        while True:
            error = await self._commit_once(offsets, deadline)
            if error is None:
                return
            reaction = reaction_to(error)
            is_retried = error.code in retried or reaction in (
                Reaction.RETRY,
                Reaction.FIND_COORDINATOR,
            )
            if not is_retried:
                raise error
            if not await self.cluster.back_off(attempt, deadline):
                if error.code is ErrorCode.NETWORK_EXCEPTION:
                    raise UnreachableError(str(error), [error])
                raise error
            attempt += 1

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, CommittedOffset], deadline: float
    ) -> BrokerError | None:
        self._check_may_commit()
        outcomes: list[BrokerError | None] = []
        try:
            await self._link.open(deadline)
        except UnreachableError as error:
            return BrokerError(ErrorCode.NETWORK_EXCEPTION, str(error), subject(self.config.group))
        except BrokerError as error:
            return error
        await self._submit_commit(offsets, lambda _, error: outcomes.append(error), deadline)
        while not outcomes:
            if not await self._link.progress(deadline):
                self._link.lose()
        return outcomes[0]

    def _check_may_commit(self) -> None:
        self._take_heartbeats()
        self._member.raise_failure()
        if self._member.is_stable:
            return
        code = ErrorCode.REBALANCE_IN_PROGRESS
        text = "the group rebalances: poll, then commit again"
        if self._member.has_lost or not self._member.identity.member_id:
            code, text = ErrorCode.UNKNOWN_MEMBER_ID, "this consumer is no longer a member"
        raise BrokerError(code, text, subject(self.config.group))

    def _check_settled(self) -> None:
        """Raise REBALANCE_IN_PROGRESS if a request would wait behind a JoinGroup."""
        if self._member.state in (State.JOINING, State.SYNCING) and self._link.is_waiting:
            text = "the group rebalances: poll, then try again"
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, text, subject(self.config.group))

    async def _auto_commit_if_due(self) -> None:
        interval = self.config.auto_commit_interval_s
        if interval is None or self._now() < self._commit_at or not self._member.is_stable:
            return
        self._commit_at = self._now() + interval
        if positions := self._partitions.positions():
            await self.start_commit(positions)

    async def _auto_commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], deadline: float | None = None
    ) -> None:
        """Commit before partitions are given up; an error is for the next owner: it reads again."""
        if self.config.auto_commit_interval_s is None or not offsets or not self._member.is_stable:
            return
        try:
            # The topic of a partition may be deleted: a retry would wait for its creation.
            await self._commit(offsets, deadline or self.cluster.deadline(), _COMMIT_RETRIED - GONE)
        except (BrokerError, UnreachableError):
            return

    # End

    async def close(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Commit (with auto-commit), give up the partitions, leave the group; at most once.

        A static member does not leave (KIP-345). Takes at most about `timeout_s` seconds. Errors of
        the network are not raised: the coordinator removes the member after the session timeout.
        """
        if self._is_closed:
            return
        self._check_not_in_callback()
        deadline = self.cluster.deadline(timeout_s)
        self._take_heartbeats()
        self.heartbeats.target = None
        try:
            await self._auto_commit(self._partitions.positions(), deadline)
            while self._link.is_waiting and self._member.state is State.STABLE:
                if not await self._link.progress(deadline):
                    break
            await self._give_up(self._partitions.all)
        finally:
            self._is_closed = True
            await self._leave(deadline)
            self._link.lose()

    async def _leave(self, deadline: float) -> None:
        """Leave the group, unless it is a static member or its coordinator cannot be reached."""
        member = self._member
        if self._link.is_waiting:  # LeaveGroup would wait behind a JoinGroup
            self._link.lose()
        try:
            if member.identity.member_id and self.config.instance_id is None:
                await self._link.open(deadline)
                if request := self._leave_request("the consumer is being closed"):
                    await self._link.ask(request, deadline)
        except (BrokerError, UnreachableError):
            pass  # the coordinator removes the member after the session timeout
        finally:
            member.on_leave()

    def _leave_request(self, reason: str) -> LeaveGroupRequest | None:
        from metaquorum.wire.messages.leave_group import LeaveGroupRequest

        return self._member.leave_request(reason, self._link.version_of(LeaveGroupRequest))

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the consumer is closed")

    def _check_not_in_callback(self) -> None:
        if self._is_in_callback:
            raise RuntimeError("a rebalance listener cannot call poll or close")

    def _now(self) -> float:
        return self.cluster.transport.monotonic()


def _ignore(
    offsets: Mapping[TopicPartition, CommittedOffset], error: BrokerError | None
) -> None: ...
