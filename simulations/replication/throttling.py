"""Quotas in worlds with replicas: clients are throttled, replication never is.

An administrator sets quotas of the default client id and of single client ids at the start, and at
the end removes or keeps them (`quota_administrator`). Each worker counts each client id separately,
and starts from zero when its process restarts.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from metaquorum.dataplane.fetch.reader import replica_of
from metaquorum.dataplane.handlers.fetch import handler
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.quorum.controller.quota_changes import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from metaquorum.simulations.cluster.cluster_state import ClusterChecker, ClusterState
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.replication.replica_checkers import WatchingChecker
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.protocol.apis import ApiKey

SLACK_S: Final = 0.5
# Rates of workers' clocks relative to the simulation's time (`faults.clock_rate`).
SLOWEST, FASTEST = 0.7, 1.5
DEFAULT: Final = None  # client id of all clients without a quota of their own
KEYS: Final = {ApiKey.PRODUCE: PRODUCER_BYTE_RATE, ApiKey.FETCH: CONSUMER_BYTE_RATE}


@dataclass(slots=True)
class _Account:
    """Bytes that one client moved through one process of a worker."""

    since: float
    bytes: int = 0
    largest: int = 0
    connections: set[int] = field(default_factory=set)


class ClientRatesHold(WatchingChecker):
    """A worker serves a client at most quota x (time + window) bytes in any time.

    Two of the largest requests for each connection are added, and `SLACK_S` to the time.
    """

    invariant = "Q1"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.quotas: dict[str | None, dict[str, float]] = {}
        self.is_in_force = False
        # In seconds, as quota.window.size.seconds is 1.
        self._window_s = int(self.cluster_state.settings.configs["quota.window.num"])
        self._accounts: dict[tuple[int, int, str, int], _Account] = {}

    def used(self, who: str, api: ApiKey, worker_id: int, connection: int, size_bytes: int) -> None:
        """Count bytes of client `who`; `connection`: number of its connection, in order."""
        quota = self.quotas.get(who, self.quotas.get(DEFAULT, {})).get(KEYS[api])
        if quota is None or not self.is_in_force:
            return
        now = self.world.now
        run = self.cluster_state.members[worker_id].supervisor.machine.runs
        account = self._accounts.setdefault((worker_id, run, who, api), _Account(now))
        account.bytes += size_bytes
        account.largest = max(account.largest, size_bytes)
        account.connections.add(connection)
        elapsed_s = (now - account.since) * FASTEST + self._window_s + SLACK_S
        most = quota * elapsed_s + 2 * len(account.connections) * account.largest
        self.compare(
            account.bytes <= most,
            "{} moved {} bytes through worker {} in {:.1f} s; quota {:g} bytes/s, {} connections",
            who,
            account.bytes,
            worker_id,
            now - account.since,
            quota,
            len(account.connections),
        )


class MutesHold(WatchingChecker):
    """A worker does not read from a throttled client's connection before its throttle time ends."""

    invariant = "Q2"

    def answered(self, who: str, early_s: float, throttle_s: float) -> None:
        self.compare(
            early_s <= SLACK_S or not self.cluster_state.checker(ClientRatesHold).is_in_force,
            "{} was throttled for {:.3f} s, and was served {:.3f} s too early",
            who,
            throttle_s,
            early_s,
        )


class ReplicationIsNotThrottled(WatchingChecker):
    """A follower never receives a throttle time, and its connection is never muted."""

    invariant = "Q5"

    def fetched(self, worker_id: int, throttle_ms: int) -> None:
        self.compare(
            not throttle_ms, "fetches of worker {} are throttled for {} ms", worker_id, throttle_ms
        )

    def muted(self, client: Client, key: str, seconds: float) -> None:
        self.cluster_state.world.count(f"muted by {key}")
        self.compare(
            not client.is_follower,
            "the connection of worker {} is muted for {:.3f} s by {}",
            client.replica.worker_id,
            seconds,
            key,
        )


QUOTA_CHECKERS: Final[tuple[type[ClusterChecker], ...]] = (
    ClientRatesHold,
    MutesHold,
    ReplicationIsNotThrottled,
)


@contextmanager
def watched_quotas(cluster_state: ReplicatedClusterState) -> Iterator[None]:
    """Report mutes of connections and throttle times of followers while the block runs."""
    checker = cluster_state.checker(ReplicationIsNotThrottled)

    def mutes(right: Any) -> Callable[..., None]:
        def _mute(self: Any, client: Client, key: str, name: Any, seconds: float) -> None:
            checker.muted(client, key, seconds)
            right(self, client, key, name, seconds)

        return _mute

    def allows(right: Any) -> Callable[..., Any]:
        def allowed(worker: Any, request: Any, message: Any, *quotas: Any) -> Any:
            made = right(worker, request, message, *quotas)
            if (replica_id := replica_of(message)) >= 0:
                checker.fetched(replica_id, made.throttle_ms)
            return made

        return allowed

    with ExitStack() as stack:
        stack.enter_context(swapped(ClientQuotas, "_mute", mutes))
        stack.enter_context(swapped(handler, "FetchAllowance", allows))
        yield
