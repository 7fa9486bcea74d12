"""Time of plans for large clusters. Arguments: workers and partitions (default 100, 100000).

Prints seconds, CPU seconds, and the numbers of the workers before and after.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from metaquorum.metadata.moves.balance import Goal, add, balance, drain, spread
from metaquorum.metadata.moves.cluster_state import ClusterState, PartitionState, WorkerState
from metaquorum.metadata.moves.plan import Plan

FACTOR = 3
PER_TOPIC = 100


def cluster(workers: int, partitions: int, racks: int, used: int) -> ClusterState:
    """Return a cluster with replicas at random on the first `used` workers."""
    chance = random.Random(1)
    all_workers = [WorkerState(at, f"rack {at % racks}", f"host {at}") for at in range(workers)]
    by_rack: dict[int, list[int]] = {}
    for at in range(used):
        by_rack.setdefault(at % racks, []).append(at)
    rows = []
    for at in range(partitions):
        if racks < FACTOR:
            replicas = chance.sample(range(used), FACTOR)
        else:
            replicas = [chance.choice(by_rack[r]) for r in chance.sample(sorted(by_rack), FACTOR)]
        size = int(chance.lognormvariate(18, 1.5))
        topic = f"topic-{at // PER_TOPIC}"
        rows.append(PartitionState(topic, at % PER_TOPIC, tuple(replicas), replicas[0], size))
    return ClusterState(tuple(all_workers), tuple(rows))


def numbers(state: ClusterState) -> str:
    count = Counter({each.worker_id: 0 for each in state.workers})
    size, leaders = count.copy(), count.copy()
    for each in state.partitions:
        leaders[each.replicas[0]] += 1
        for worker in each.replicas:
            count[worker] += 1
            size[worker] += each.size_bytes
    mean = sum(size.values()) / len(size)
    return (
        f"replicas {min(count.values())}-{max(count.values())}"
        f" bytes {min(size.values()) / mean:.2f}-{max(size.values()) / mean:.2f}"
        f" leaders {min(leaders.values())}-{max(leaders.values())}"
    )


def measure(name: str, state: ClusterState, planned: Callable[[ClusterState], Plan]) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    plan = planned(state)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(
        f"{name}: {seconds:.1f} s, CPU {cpu:.1f} s: {len(plan.moves)} moves,"
        f" {plan.copied_bytes / state.log_bytes:.1%} of the bytes;"
        f" {numbers(state)} -> {numbers(state.moved(plan))}",
        flush=True,
    )


def main(workers: int, partitions: int) -> None:
    for racks in (1, 3, 10):
        state = cluster(workers, partitions, racks, workers)
        topics = {each.topic for each in state.partitions}
        half = range(workers // 2)
        measure(f"balance, {racks} racks", state, balance)
        measure(f"numbers, {racks} racks", state, lambda s: balance(s, {Goal.REPLICAS}))
        measure(f"drain, {racks} racks", state, lambda s: drain(s, [0]))
        measure(f"topics, {racks} racks", state, lambda s, t=topics, h=half: spread(s, t, h))  # type: ignore[misc]
    most = workers - workers // 10
    measure(
        "add a tenth", cluster(workers, partitions, 1, most), lambda s: add(s, range(most, workers))
    )
    measure("balance, half empty", cluster(workers, partitions, 1, workers // 2), balance)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (100, 100_000)))
