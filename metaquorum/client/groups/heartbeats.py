"""Heartbeats of a member, sent by a background task or thread.

`Heartbeats` is all that the consumer and the background share: the consumer sets `target` and
`polled_at`, the background appends to `outcomes`, which the consumer takes at its next poll. Both
sides only replace or append whole values, so that no lock is needed. The background has a
connection of its own, behind no JoinGroup or Fetch, and looks up a coordinator that has moved.

A consumer that does not poll for `max_poll_interval_s` leaves its group (KIP-62). A static member
only stops its heartbeats, and the coordinator removes it after the session timeout (KIP-345).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from metaquorum.client.cluster import Cluster, Node
from metaquorum.client.connection import BrokerConnection
from metaquorum.client.errors import AdminError, UnreachableError
from metaquorum.client.groups.coordinators import find_coordinator_on
from metaquorum.client.groups.group_config import GroupConfig
from metaquorum.client.groups.group_member import Identity
from metaquorum.client.transport import BROKEN
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

if TYPE_CHECKING:
    from metaquorum.wire.messages.heartbeat import HeartbeatRequest
    from metaquorum.wire.messages.leave_group import LeaveGroupRequest

# Longest that one request of the background takes; a share of the session timeout if that is less.
REQUEST_TIMEOUT_S: Final = 10.0
_REQUESTS_PER_SESSION: Final = 3
RETRY_PAUSE_S: Final = 0.5
# Errors after which the generation of the member is over.
_FINAL: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
# Outcomes that are kept for a consumer that does not poll; the newest matter.
MAX_OUTCOMES: Final = 100


@frozen
class HeartbeatTarget:
    """Requests of the background, and the coordinator; `nodes` can name a coordinator that moved.

    `leave`: None for a static member.
    """

    identity: Identity
    coordinator: Node
    nodes: Sequence[Node]
    heartbeat: HeartbeatRequest
    leave: LeaveGroupRequest | None


@frozen
class HeartbeatOutcome:
    """Error code of a heartbeat of `identity`; `has_timed_out`: it left as it did not poll."""

    identity: Identity
    error_code: int = 0
    has_timed_out: bool = False


class Heartbeats:
    """The state that is shared with the background, and the next step of the background."""

    def __init__(self, cluster: Cluster, config: GroupConfig) -> None:
        self.target: HeartbeatTarget | None = None
        self.polled_at = cluster.transport.monotonic()
        self.outcomes: deque[HeartbeatOutcome] = deque(maxlen=MAX_OUTCOMES)
        self._cluster = cluster
        self._config = config
        # The rest belongs to the background.
        self._ended: HeartbeatTarget | None = None  # its generation is over
        self._coordinator: Node | None = None
        self._looked_up_for: HeartbeatTarget | None = None
        self._connection: BrokerConnection | None = None

    async def beat(self) -> float:
        """Send a heartbeat if one is due; return the time at which to call this again.

        Raises no error of the network: the next call repeats the heartbeat.
        """
        now = self._cluster.transport.monotonic()
        target = self.target
        if target is None or target is self._ended:
            self.close()
            return now + min(RETRY_PAUSE_S, self._config.heartbeat_interval_s)
        if self._looked_up_for is not target:
            self._coordinator, self._looked_up_for = target.coordinator, target
            self.close()
        has_timed_out = now - self.polled_at > self._config.max_poll_interval_s
        deadline = now + min(
            REQUEST_TIMEOUT_S, self._config.session_timeout_s / _REQUESTS_PER_SESSION
        )
        try:
            if has_timed_out:
                self._ended = target
                self.outcomes.append(HeartbeatOutcome(target.identity, has_timed_out=True))
                if target.leave is not None:
                    await self._ask(target.leave, target, deadline)
            else:
                response = await self._ask(target.heartbeat, target, deadline)
                return self._on_response(target, response.error_code, now)
        except (*BROKEN, KafkaError, AdminError):
            self._disconnect()
        return now + min(RETRY_PAUSE_S, self._config.heartbeat_interval_s)

    def _on_response(self, target: HeartbeatTarget, code: int, now: float) -> float:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._disconnect()
            return now + min(RETRY_PAUSE_S, self._config.heartbeat_interval_s)
        if code and code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.outcomes.append(HeartbeatOutcome(target.identity, code))
            if code in _FINAL:
                self._ended = target
        return now + self._config.heartbeat_interval_s

    async def _ask(
        self,
        request: HeartbeatRequest | LeaveGroupRequest,
        target: HeartbeatTarget,
        deadline: float,
    ) -> Any:
        if self._coordinator is None:
            self._coordinator = await self._look_up(target, deadline)
        if self._connection is None:
            self._connection = await self._cluster.open_connection(self._coordinator, deadline)
        await self._connection.send(request, deadline)
        return await self._connection.receive(deadline)

    async def _look_up(self, target: HeartbeatTarget, deadline: float) -> Node:
        failure: Exception = UnreachableError("no node is known")
        for node in target.nodes:
            connection = None
            try:
                connection = await self._cluster.open_connection(node, deadline)
                return await find_coordinator_on(connection, self._config.group, deadline)
            except (*BROKEN, KafkaError, AdminError) as error:
                failure = error
            finally:
                if connection is not None:
                    connection.close()
        raise failure

    def _disconnect(self) -> None:
        self._coordinator = None
        self.close()

    def close(self) -> None:
        """Close the connection; the background has ended, or has nothing to send."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
