"""How long a plan takes, and which throttles are possible for it (KIP-73).

The proposal estimates with averages over the cluster:

    MoveRatio = partitions that move / all partitions
    MoveTime  = MoveRatio x log bytes per worker x workers / (throttle - IN)
    IN < throttle < N - IN/R      IN: bytes per second into the busiest worker, N: its network
                                  R: replication factor
    replica.fetch.response.max.bytes <= throttle x window, or window x N / workers if that is less

MoveTime assumes that everything is sent through one throttle, and that partitions have the same
size: it is too long if many workers send, and too short if large partitions move. The sizes and
rates of each partition give a closer one. A worker with throttle T receives C bytes of copies while
producers write K bytes per second to the same partitions (keep-up traffic), which the throttle
counts:

    time of one worker and side = C / (T - K)      the move ends with the slowest
    K of a follower: the inbound rate of partitions that the worker receives
    K of a leader:   the inbound rate of partitions that it leads and that move, once for each of
                     their new replicas

The move cannot end if T <= K. Source: KIP-73, questions 1, 4 and 5.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import ceil, floor, inf
from typing import Final

from metaquorum.metadata.moves.cluster_state import ClusterState
from metaquorum.metadata.moves.plan import MAX_BYTES, Plan, PlanError
from metaquorum.wire.primitives.frozen import frozen

RESPONSE_CONFIG: Final = "replica.fetch.response.max.bytes"
# A proposed throttle is this many times the keep-up traffic, if the network is not known.
_HEADROOM: Final = 2


# The formulas of the proposal


def move_ratio(moved_partitions: int, partitions: int) -> float:
    """Return the part of the partitions that move; 0 in a cluster without partitions."""
    return moved_partitions / partitions if partitions else 0.0


def move_time_s(
    ratio: float,
    log_bytes_per_worker: float,
    workers: int,
    throttle_bytes_per_s: float,
    most_bytes_in_per_s: float,
) -> float:
    """Return MoveTime of the proposal; infinite if the throttle is not above the inbound rate."""
    return _seconds(
        ratio * log_bytes_per_worker * workers, throttle_bytes_per_s - most_bytes_in_per_s
    )


def throttle_bounds(
    bytes_in_per_s: float, network_bytes_per_s: float, replication_factor: float
) -> tuple[float, float]:
    """Return IN and N - IN/R: a throttle must be above the first and below the second."""
    return bytes_in_per_s, network_bytes_per_s - bytes_in_per_s / replication_factor


def largest_response_bytes(
    throttle_bytes_per_s: float,
    window_s: float,
    workers: int = 1,
    network_bytes_per_s: float | None = None,
) -> int:
    """Return the largest replica.fetch.response.max.bytes for a throttle.

    The first responses of all leaders must be sent within the window, or they exceed the throttle:
    workers x response / min(throttle x workers, network) <= window.
    """
    sent_per_s = throttle_bytes_per_s * workers
    if network_bytes_per_s is not None:
        sent_per_s = min(sent_per_s, network_bytes_per_s)
    return floor(sent_per_s * window_s / workers)


def _seconds(size_bytes: float, bytes_per_s: float) -> float:
    if size_bytes <= 0:
        return 0.0
    return size_bytes / bytes_per_s if bytes_per_s > 0 else inf


# The same with the sizes and rates of each partition


@frozen
class WorkerTraffic:
    """Traffic of one worker because of a plan: received as follower, sent as leader."""

    worker_id: int
    received_bytes: int = 0  # copies
    received_keep_up: float = 0.0  # bytes per second of new records to the same partitions
    sent_bytes: int = 0
    sent_keep_up: float = 0.0
    bytes_in_per_s: float = 0.0  # to all its replicas, before or after the plan: the higher
    bytes_in_led: float = 0.0  # IN/R: its part if every worker leads its share of its replicas

    def time_s(self, throttle_bytes_per_s: float) -> float:
        """Return the seconds until the worker has received and sent its copies."""
        return max(
            _seconds(self.received_bytes, throttle_bytes_per_s - self.received_keep_up),
            _seconds(self.sent_bytes, throttle_bytes_per_s - self.sent_keep_up),
        )

    def throttle_for(self, time_s: float) -> float:
        """Return the throttle with which the worker takes this time."""
        received = self.received_bytes / time_s + self.received_keep_up
        sent = self.sent_bytes / time_s + self.sent_keep_up
        return max(received if self.received_bytes else 0.0, sent if self.sent_bytes else 0.0)

    @property
    def keep_up(self) -> float:
        """Bytes per second that a throttle must exceed, or the worker never has its copies."""
        return max(
            self.received_keep_up if self.received_bytes else 0.0,
            self.sent_keep_up if self.sent_bytes else 0.0,
        )


def worker_traffic(state: ClusterState, plan: Plan) -> dict[int, WorkerTraffic]:
    """Return the traffic of each worker, with all partitions of the plan moving at the same time.

    Raises PlanError if a partition or a worker of the plan does not exist.
    """
    after = state.moved(plan)
    received: dict[int, int] = defaultdict(int)
    received_keep_up: dict[int, float] = defaultdict(float)
    sent: dict[int, int] = defaultdict(int)
    sent_keep_up: dict[int, float] = defaultdict(float)
    for then, now in zip(after.partitions, state.partitions, strict=True):
        adding = [worker for worker in then.replicas if worker not in now.replicas]
        if not adding:
            continue
        for worker in adding:
            received[worker] += now.size_bytes
            received_keep_up[worker] += now.bytes_in_per_s
        sent[now.sender] += now.size_bytes * len(adding)
        sent_keep_up[now.sender] += now.bytes_in_per_s * len(adding)
    inbound = _higher(_inbound(state), _inbound(after))
    led = _higher(_inbound_led(state), _inbound_led(after))
    ids = sorted({worker.worker_id for worker in state.workers} | set(inbound) | set(sent))
    return {
        each: WorkerTraffic(
            each,
            received[each],
            received_keep_up[each],
            sent[each],
            sent_keep_up[each],
            inbound.get(each, 0.0),
            led.get(each, 0.0),
        )
        for each in ids
    }


def _inbound(state: ClusterState) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for each in state.partitions:
        for worker in each.replicas:
            found[worker] += each.bytes_in_per_s
    return found


def _inbound_led(state: ClusterState) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for each in state.partitions:
        for worker in each.replicas:
            found[worker] += each.bytes_in_per_s / len(each.replicas)
    return found


def _higher(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    return {each: max(one.get(each, 0.0), other.get(each, 0.0)) for each in {*one, *other}}


@frozen
class Limits:
    """Limits of the cluster. None: not known, and then not checked."""

    network_bytes_per_s: float | None = None  # N, of the slowest worker
    response_max_bytes: int | None = None  # replica.fetch.response.max.bytes, the highest
    window_s: float | None = None  # replication.quota.window.num x .size.seconds, the lowest


@frozen
class Estimate:
    """Bytes and time of a plan. `throttle_bytes_per_s` None: it is not throttled.

    `move_time_s` is the time by the busiest worker, `kip73_time_s` MoveTime of the proposal. Both
    are infinite if the move cannot end, and None without a throttle.
    """

    moved_partitions: int
    partitions: int
    copied_bytes: int
    log_bytes: int
    most_bytes_in_per_s: float  # IN of the busiest worker
    keep_up: float  # throttled bytes per second of new records, of the busiest worker
    network_bytes_per_s: float | None  # N; None: not known
    upper_bound: float | None  # N - IN/R; None if the network is not known
    throttle_bytes_per_s: int | None
    move_time_s: float | None
    kip73_time_s: float | None
    slowest_worker: int | None
    refusal: str | None  # why the throttle is not possible
    proposed_bytes_per_s: int | None  # another throttle; None if none is possible
    warnings: tuple[str, ...]

    @property
    def move_ratio(self) -> float:
        return move_ratio(self.moved_partitions, self.partitions)

    @property
    def network_share(self) -> float | None:
        """Part of the network that the throttle takes from clients, at most. None: not known."""
        if self.throttle_bytes_per_s is None or self.network_bytes_per_s is None:
            return None
        return self.throttle_bytes_per_s / self.network_bytes_per_s

    @property
    def lower_bound(self) -> float:
        """IN: the throttle should be above it."""
        return self.most_bytes_in_per_s


def estimate(
    state: ClusterState, plan: Plan, throttle_bytes_per_s: int | None, limits: Limits
) -> Estimate:
    """Return what the plan costs with this throttle (None: without one).

    Raises PlanError if a partition or a worker of the plan does not exist.
    """
    traffic = list(worker_traffic(state, plan).values())
    copied = sum(each.received_bytes for each in traffic)
    most_in = max((each.bytes_in_per_s for each in traffic), default=0.0)
    upper = _upper_bound(traffic, limits)
    throttle = throttle_bytes_per_s
    slowest: WorkerTraffic | None = None
    time_s = kip73_s = None
    if throttle is not None:
        if copied:
            slowest = max(traffic, key=lambda each: each.time_s(throttle))
        time_s = 0.0 if slowest is None else slowest.time_s(throttle)
        ratio = move_ratio(len(plan.moves), len(state.partitions))
        workers = len(state.workers)
        kip73_s = move_time_s(ratio, state.log_bytes / max(workers, 1), workers, throttle, most_in)
    return Estimate(
        len(plan.moves),
        len(state.partitions),
        copied,
        state.log_bytes,
        most_in,
        _keep_up(traffic),
        limits.network_bytes_per_s,
        upper,
        throttle,
        time_s,
        kip73_s if copied else time_s,
        None if slowest is None else slowest.worker_id,
        None if throttle is None else _refusal(traffic, throttle),
        proposed_throttle(traffic, limits) if copied else None,
        (
            *_full_workers(state, traffic),
            *(_warnings(traffic, throttle, upper, limits, len(state.workers)) if copied else ()),
        ),
    )


def _full_workers(state: ClusterState, traffic: list[WorkerTraffic]) -> Iterator[str]:
    """Yield a warning for each worker whose free space is smaller than its copies."""
    free = {worker.worker_id: worker.free_bytes for worker in state.workers}
    for each in traffic:
        free_bytes = free.get(each.worker_id)
        if free_bytes is not None and each.received_bytes > free_bytes:
            yield (
                f"Worker {each.worker_id} receives {each.received_bytes:,} bytes, and its log"
                f" directories have {free_bytes:,} bytes free: free some space there, or move less"
                " to it."
            )


def _upper_bound(traffic: list[WorkerTraffic], limits: Limits) -> float | None:
    if limits.network_bytes_per_s is None:
        return None
    return limits.network_bytes_per_s - max((each.bytes_in_led for each in traffic), default=0.0)


def _keep_up(traffic: list[WorkerTraffic]) -> float:
    return max((each.keep_up for each in traffic), default=0.0)


def proposed_throttle(traffic: list[WorkerTraffic], limits: Limits) -> int | None:
    """Return a throttle for the plan, in bytes per second; None if none is possible.

    With a known network the middle of the bounds; otherwise twice the bytes that producers write,
    and at least what one response in the window needs. If that is not known either, none: producers
    may write little while it is measured.
    """
    least = max(_keep_up(traffic), max((each.bytes_in_per_s for each in traffic), default=0.0))
    upper = _upper_bound(traffic, limits)
    if upper is not None:
        if upper <= least and upper > _keep_up(traffic):
            least = _keep_up(traffic)
        middle = floor((least + upper) / 2)
        return middle if least < middle < upper else None
    if limits.response_max_bytes is None or limits.window_s is None:
        return None
    response = limits.response_max_bytes / limits.window_s
    return max(ceil(_HEADROOM * least), ceil(response), floor(least) + 1)


def throttle_within(traffic: list[WorkerTraffic], time_s: float) -> int:
    """Return the least throttle with which the plan takes at most this time.

    Raises PlanError if it is above any throttle that a plan can have.
    """
    throttle = max((each.throttle_for(time_s) for each in traffic), default=0.0)
    if throttle >= MAX_BYTES:
        raise PlanError("no throttle is high enough for this time; choose a longer one")
    return max(ceil(throttle), 1)


def _refusal(traffic: list[WorkerTraffic], throttle: int) -> str | None:
    """Return why the move never ends with this throttle; None if it does."""
    for each in traffic:
        if each.received_bytes and throttle <= each.received_keep_up:
            return (
                f"With a throttle of {throttle:,} B/s the move never ends: producers write"
                f" {each.received_keep_up:,.0f} B/s to the partitions that worker"
                f" {each.worker_id} receives, the throttle counts these bytes, and none are left"
                " for the copies."
            )
        if each.sent_bytes and throttle <= each.sent_keep_up:
            return (
                f"With a throttle of {throttle:,} B/s the move never ends: worker"
                f" {each.worker_id} sends {each.sent_keep_up:,.0f} B/s of new records of the moving"
                " partitions to their new replicas, the throttle counts these bytes, and none are"
                " left for the copies."
            )
    return None


def _warnings(
    traffic: list[WorkerTraffic],
    throttle: int | None,
    upper: float | None,
    limits: Limits,
    workers: int,
) -> list[str]:
    network = limits.network_bytes_per_s
    found = []
    if upper is not None and upper <= _keep_up(traffic):
        found.append(
            f"No throttle is between the keep-up traffic ({_keep_up(traffic):,.0f} B/s) and"
            f" N - IN/R ({upper:,.0f} B/s): move fewer partitions at a"
            " time, or when there is less traffic."
        )
    if throttle is None:
        return found
    busiest = max(traffic, key=lambda each: each.bytes_in_per_s)
    if _keep_up(traffic) < throttle <= busiest.bytes_in_per_s:
        found.append(
            f"The throttle is not above the {busiest.bytes_in_per_s:,.0f} B/s that producers write"
            f" to all replicas of worker {busiest.worker_id}: the move may stall if leaders move,"
            " or producers write more to the moving partitions."
        )
    if upper is not None and throttle >= upper:
        found.append(
            f"The throttle is not below N - IN/R = {upper:,.0f} B/s: the copies may take network"
            " from producers. Choose a lower one."
        )
    if limits.response_max_bytes is not None and limits.window_s is not None:
        largest = largest_response_bytes(throttle, limits.window_s, workers, network)
        if limits.response_max_bytes > largest:
            found.append(
                f"{RESPONSE_CONFIG} is {limits.response_max_bytes}: the first responses exceed the"
                f" throttle for longer than its window of {limits.window_s:g} s. Set"
                f" {RESPONSE_CONFIG}={largest} on all workers"
                + (
                    f", or choose a throttle of at least"
                    f" {ceil(limits.response_max_bytes / limits.window_s):,} B/s."
                    if network is None or throttle * workers <= network
                    else ": the network, not the throttle, limits them."
                )
            )
    return found
