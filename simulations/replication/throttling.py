"""Quotas in worlds with replicas: clients that are throttled, and replication, which never is.

An administrator sets quotas of the default client id and of single ones when the world begins, and
takes them back in the end, or leaves them (`quota_administrator`). Each worker has an allowance of
its own for each client id, which begins anew with its process.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from dataplane.fetch.reader import replica_of
from dataplane.handlers import fetch
from dataplane.network.client import Client
from dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.controller.quota_changes import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from simulations.cluster.cluster_state import ClusterChecker, ClusterState
from simulations.kernel.mutation import swapped
from simulations.replication.replica_checkers import WatchingChecker
from simulations.replication.replicated_cluster import ReplicatedClusterState
from wire.protocol.apis import ApiKey

SLACK_S: Final = 0.5
# Clocks of workers run at such rates, of their time to ours (`troubles.clock_rate`).
SLOWEST, FASTEST = 0.7, 1.5
DEFAULT: Final = None  # the client id of all that have no quota of their own
KEYS: Final = {ApiKey.PRODUCE: PRODUCER_BYTE_RATE, ApiKey.FETCH: CONSUMER_BYTE_RATE}


@dataclass(slots=True)
class _Account:
    """What one client got of one process of a worker."""

    since: float
    bytes: int = 0
    largest: int = 0
    connections: set[int] = field(default_factory=set)


class ClientRatesHold(WatchingChecker):
    """A worker gives a client its quota x (time + window), and a request of each connection."""

    invariant = "Q1"

    def __init__(self, cluster_state: ClusterState) -> None:
        super().__init__(cluster_state)
        self.quotas: dict[str | None, dict[str, float]] = {}
        self.is_in_force = False
        # Seconds: quota.window.size.seconds is 1.
        self._window_s = int(self.cluster_state.settings.configs["quota.window.num"])
        self._accounts: dict[tuple[int, int, str, int], _Account] = {}

    def used(self, who: str, api: ApiKey, worker_id: int, connection: int, size_bytes: int) -> None:
        """By that connection of its, in the order in which they were made."""
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
            "{} got {} bytes of worker {} in {:.1f} s, at {:g} a second by {} connections",
            who,
            account.bytes,
            worker_id,
            now - account.since,
            quota,
            len(account.connections),
        )


class MutesHold(WatchingChecker):
    """Who was told to wait, and has quotas, is not heard before on the same connection."""

    invariant = "Q2"

    def answered(self, who: str, early_s: float, throttle_s: float) -> None:
        self.compare(
            early_s <= SLACK_S or not self.cluster_state.checker(ClientRatesHold).is_in_force,
            "{} was to wait {:.3f} s, and was heard {:.3f} s too early",
            who,
            throttle_s,
            early_s,
        )


class ReplicationIsNotThrottled(WatchingChecker):
    """A follower is never told to wait, and its connection never muted, whatever the quotas."""

    invariant = "Q5"

    def fetched(self, worker_id: int, throttle_ms: int) -> None:
        self.compare(
            not throttle_ms, "worker {} is to wait {} ms with its fetches", worker_id, throttle_ms
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
    """What quotas do to connections, and to fetches of followers, is told to the checker."""
    checker = cluster_state.checker(ReplicationIsNotThrottled)

    def mutes(right: Any) -> Callable[..., None]:
        def _mute(self: Any, client: Client, key: str, name: Any, seconds: float) -> None:
            checker.muted(client, key, seconds)
            right(self, client, key, name, seconds)

        return _mute

    def allows(right: Any) -> Callable[..., Any]:
        def allowed(worker: Any, request: Any, message: Any, **options: Any) -> Any:
            made = right(worker, request, message, **options)
            if (replica_id := replica_of(message)) >= 0:
                checker.fetched(replica_id, made.throttle_ms)
            return made

        return allowed

    with ExitStack() as stack:
        stack.enter_context(swapped(ClientQuotas, "_mute", mutes))
        stack.enter_context(swapped(fetch, "_Allowed", allows))
        yield
