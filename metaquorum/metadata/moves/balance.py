"""Targets of moves: empty a worker, fill a new one, balance a cluster, spread topics over workers.

A heuristic in up to four steps. Each replaces one replica of a partition by one on another worker,
which is *legal* if the replicas share hosts and racks no more than before (the rules of
`metaquorum.quorum.controller.replica_placement`: workers without a rack are one rack).

    1. evacuate   each replica on a worker that is emptied goes, the largest first, to the legal
                  worker with the fewest replicas. If none is legal, to the one that shares least.
    2. replicas   from the worker with the most replicas to the one with the fewest, while they
                  differ by two. The replica whose size brings both closest to the mean; without the
                  goal `bytes` the smallest.
    3. bytes      the fullest worker gives the emptiest a replica, or exchanges two of different
                  sizes if step 2 has balanced the numbers, until all are within a tolerance of the
                  mean.
    4. leaders    another of the replicas becomes the preferred leader, along the shortest chain of
                  workers from one with many leaders to one with few. This copies nothing.

Bounds, which property tests check:

    replicas   two workers differ by at most 1; with racks or shared hosts, only if no legal move of
               one replica between the two would help
    bytes      all workers are within the tolerance, or the fullest and the emptiest differ by at
               most the largest replica (without racks and shared hosts)
    leaders    the numbers of leaders are as equal as the replicas permit

A second plan for the same goals is empty. A partition is moved only if it has a leader and does not
move yet; only live workers that are not draining receive replicas or are balanced.

Deliberately absent: an exact solver. The fewest bytes for given bounds is an integer program of ten
million variables for 100,000 partitions on 100 workers.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias

from metaquorum.metadata.moves.cluster_state import ClusterState, PartitionState, WorkerState
from metaquorum.metadata.moves.plan import PartitionMove, Plan, PlanError


class Goal(Enum):
    """A number that is balanced among workers."""

    REPLICAS = "replicas"
    BYTES = "bytes"
    LEADERS = "leaders"


Goals: TypeAlias = Collection[Goal]
ALL_GOALS: Final = frozenset(Goal)
DEFAULT_TOLERANCE: Final = 0.1  # part of the mean by which the bytes of a worker may differ from it
# Replicas of similar size that are tried for one move, before racks are examined as a whole.
_TRIED: Final = 64
# Smaller replicas that are tried as the other part of an exchange.
_TRIED_RETURNS: Final = 12
_MOST_EXCHANGES: Final = 100  # per worker
_MOST_ROUNDS: Final = 10


def drain(state: ClusterState, workers: Collection[int]) -> Plan:
    """Return the plan that empties the workers. Raises PlanError if the others are too few.

    Partitions that may not move stay: `staying`.
    """
    _check_known(state, workers)
    placement = _Placement(state, _receiving(state, workers))
    placement.evacuate(workers)
    return placement.plan()


def add(state: ClusterState, workers: Collection[int], goals: Goals = ALL_GOALS) -> Plan:
    """Return the plan that gives the workers, which have few replicas, their share of all.

    Nothing moves between the other workers. Raises PlanError if a worker may not receive replicas.
    """
    _check_receiving(state, workers)
    placement = _Placement(state, _receiving(state))
    share = sum(placement.count[each] for each in placement.active) // len(placement.active)
    placement.even_counts(set(workers), goals, share)
    if Goal.LEADERS in goals:
        placement.even_leaders(placement.changed())
    return placement.plan()


def balance(
    state: ClusterState, goals: Goals = ALL_GOALS, tolerance: float = DEFAULT_TOLERANCE
) -> Plan:
    """Return the plan that balances the goals among the workers."""
    return _balanced(_Placement(state, _receiving(state)), goals, tolerance)


def spread(
    state: ClusterState,
    topics: Collection[str],
    workers: Collection[int] | None = None,
    goals: Goals = ALL_GOALS,
    tolerance: float = DEFAULT_TOLERANCE,
) -> Plan:
    """Return the plan that has the topics on these workers only (None: on all), balanced.

    Other topics are not counted. Raises PlanError if a topic or a worker does not exist, a worker
    may not receive replicas, or the workers are too few.
    """
    known = {each.topic for each in state.partitions}
    for topic in topics:
        if topic not in known:
            raise PlanError(f"there is no topic {topic}")
    if workers is not None:
        _check_receiving(state, workers)
    chosen = set(topics)
    own = ClusterState(state.workers, tuple([p for p in state.partitions if p.topic in chosen]))
    placement = _Placement(own, _receiving(state) if workers is None else set(workers))
    if workers is not None:
        placement.evacuate({each.worker_id for each in state.workers} - set(workers))
    return _balanced(placement, goals, tolerance)


def _balanced(placement: "_Placement", goals: Goals, tolerance: float) -> Plan:
    for _ in range(_MOST_ROUNDS):  # an exchange may permit another move, if there are racks
        has_changed = False
        if Goal.REPLICAS in goals:
            has_changed = placement.even_counts(placement.active, goals)
        if Goal.BYTES in goals:
            has_changed |= placement.even_bytes(tolerance, keeps_counts=Goal.REPLICAS in goals)
        if not has_changed:
            break
    if Goal.LEADERS in goals:
        placement.even_leaders(range(len(placement.partitions)))
    return placement.plan()


def staying(state: ClusterState, workers: Collection[int]) -> list[PartitionState]:
    """Return the partitions on the workers that a plan cannot move now."""
    return [
        each
        for each in state.partitions
        if not each.may_move and any(worker in workers for worker in each.replicas)
    ]


def crowded(state: ClusterState, plan: Plan) -> list[PartitionMove]:
    """Return the moves whose target is in fewer racks, or on fewer hosts, than the replicas now."""
    racks, hosts = _groups(state.workers)

    def places(replicas: Iterable[int], group: dict[int, str]) -> int:
        return len({group.get(worker, str(worker)) for worker in replicas})

    return [
        move
        for move in plan.moves
        if any(
            places(move.target, group) < min(len(move.target), places(move.replicas, group))
            for group in (racks, hosts)
        )
    ]


def _check_known(state: ClusterState, workers: Iterable[int]) -> None:
    known = {each.worker_id for each in state.workers}
    for worker in workers:
        if worker not in known:
            raise PlanError(f"there is no worker {worker}")


def _check_receiving(state: ClusterState, workers: Collection[int]) -> None:
    _check_known(state, workers)
    receiving = _receiving(state)
    for worker in workers:
        if worker not in receiving:
            raise PlanError(
                f"worker {worker} cannot receive replicas, because it is not live or is draining"
            )


def _receiving(state: ClusterState, without: Collection[int] = ()) -> set[int]:
    return {w.worker_id for w in state.workers if w.may_receive and w.worker_id not in without}


def _groups(workers: Iterable[WorkerState]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the rack and the host of each worker, as `replica_placement` compares them."""
    racks = {each.worker_id: each.rack or "" for each in workers}
    hosts = {each.worker_id: each.host or f"worker {each.worker_id}" for each in workers}
    return racks, hosts


class _Placement:
    """Replicas of all partitions while a plan is made.

    `active` are the workers that may receive replicas, and that are balanced.
    """

    def __init__(self, state: ClusterState, active: set[int]) -> None:
        if not active:
            raise PlanError("there is no worker that may receive replicas")
        self.partitions = state.partitions
        self.active = active
        self.replicas = [list(each.replicas) for each in state.partitions]
        self.size = [each.size_bytes for each in state.partitions]
        self._rack, self._host = _groups(state.workers)
        # One group for all workers, or one for each, permits every move.
        self._checks_racks = 1 < len(set(self._rack.values())) < len(self._rack)
        self._groups = [self._rack] if self._checks_racks else []
        if len(set(self._host.values())) < len(self._host):
            self._groups.append(self._host)
        ids = {w for row in self.replicas for w in row} | {w.worker_id for w in state.workers}
        self.count = dict.fromkeys(ids, 0)
        self.bytes = dict.fromkeys(ids, 0)
        self.on: dict[int, list[tuple[int, int]]] = {each: [] for each in ids}  # size, partition
        for at, row in enumerate(self.replicas):
            may_move = state.partitions[at].may_move
            for worker in row:
                self.count[worker] += 1
                self.bytes[worker] += self.size[at]
                if may_move:
                    self.on[worker].append((self.size[at], at))
        for movable in self.on.values():
            movable.sort()

    def _is_legal(self, at: int, old: int, new: int) -> bool:
        row = self.replicas[at]
        if new in row:
            return False
        for group in self._groups:
            here, there = group.get(old), group[new]
            if here == there:
                continue
            shared = 0
            for worker in row:
                place = group.get(worker)
                shared += (place == there) - (place == here)
            if shared + 1 > 0:  # `old` is counted once in its own place
                return False
        return True

    def _replace(self, at: int, old: int, new: int) -> None:
        size = self.size[at]
        row = self.replicas[at]
        row[row.index(old)] = new
        self.count[old] -= 1
        self.count[new] += 1
        self.bytes[old] -= size
        self.bytes[new] += size
        movable = self.on[old]
        del movable[bisect_left(movable, (size, at))]
        insort(self.on[new], (size, at))

    def _nearest(self, worker: int, size: float) -> Iterator[tuple[int, int]]:
        """Yield the movable replicas on the worker, those nearest to the size first."""
        movable = self.on[worker]
        above = bisect_left(movable, (size, -1))
        below = above - 1
        while below >= 0 or above < len(movable):
            if below < 0 or (
                above < len(movable) and movable[above][0] - size <= size - movable[below][0]
            ):
                yield movable[above]
                above += 1
            else:
                yield movable[below]
                below -= 1

    # Step 1

    def evacuate(self, workers: Collection[int]) -> None:
        """Replace all movable replicas on the workers. Raises PlanError if there is no other."""
        order = sorted([(self.count[each], self.bytes[each], each) for each in self.active])
        leaving = [(size, at, old) for old in workers for size, at in self.on.get(old, ())]
        for _, at, old in sorted(leaving, reverse=True):
            new = next((each for *_, each in order if self._is_legal(at, old, each)), None)
            if new is None:
                new = self._least_shared(at, old, [each for *_, each in order])
            del order[bisect_left(order, (self.count[new], self.bytes[new], new))]
            self._replace(at, old, new)
            insort(order, (self.count[new], self.bytes[new], new))
        self._restore_order()

    def _least_shared(self, at: int, old: int, order: Sequence[int]) -> int:
        others = [each for each in self.replicas[at] if each != old]
        free = [each for each in order if each not in others]
        if not free:
            partition = self.partitions[at]
            many = "1 worker" if len(order) == 1 else f"{len(order)} workers"
            raise PlanError(
                f"{partition.name} has {len(partition.replicas)} replicas, and the plan leaves only"
                f" {many} for them; add workers, or lower the replication factor first"
            )
        hosts = Counter([self._host.get(each) for each in others])
        racks = Counter([self._rack.get(each) for each in others])
        return min(free, key=lambda each: (hosts[self._host[each]], racks[self._rack[each]]))

    # Step 2

    def even_counts(
        self, receivers: Collection[int], goals: Goals, most: int | None = None
    ) -> bool:
        """Move replicas to the receivers until no legal move brings two numbers closer.

        Return whether anything moves.
        `most`: a receiver with this number of replicas receives no more.
        """
        mean = sum(self.bytes[each] for each in self.active) / len(self.active)
        mean_count = sum(self.count[each] for each in self.active) / len(self.active)

        def wanted(old: int, new: int) -> float:
            if Goal.BYTES not in goals:
                return 0.0
            missing = (mean - self.bytes[new]) / max(mean_count - self.count[new], 1)
            if most is not None:  # only the receivers are to have their share
                return max(0.0, missing)
            excess = (self.bytes[old] - mean) / max(self.count[old] - mean_count, 1)
            return max(0.0, (missing + excess) / 2)

        has_moved = False
        while self._even_counts_once(sorted(receivers), wanted, most):
            has_moved = True
        self._restore_order()
        return has_moved

    def _even_counts_once(
        self, receivers: list[int], wanted: Callable[[int, int], float], most: int | None
    ) -> bool:
        """Return whether replicas were moved. A pair without a legal move is tried once."""
        has_moved = False
        givers = sorted(self.active)  # among equal workers the lowest id is chosen
        blocked: set[tuple[int, int]] = set()
        racks: dict[int, set[str]] = {}
        while givers:
            old = max(givers, key=self.count.__getitem__)
            for new in self._poorest_first(receivers, self.count[old] - 2, most):
                if (old, new) in blocked:
                    continue
                at = self._find(old, new, wanted(old, new), racks)
                if at is not None:
                    self._replace(at, old, new)
                    has_moved = True
                    break
                blocked.add((old, new))
            else:
                givers.remove(old)
        return has_moved

    def _poorest_first(self, workers: list[int], most: int, cap: int | None) -> Iterator[int]:
        """Yield the workers with at most `most` replicas, and fewer than `cap`, in that order."""
        if not workers:
            return
        last = most if cap is None else min(most, cap - 1)
        first = min(workers, key=self.count.__getitem__)
        if self.count[first] > last:
            return
        yield first  # the others are sorted only if this one cannot receive
        rest = [(self.count[each], each) for each in workers if each != first]
        for count, each in sorted(rest):
            if count > last:
                return
            yield each

    def _find(self, old: int, new: int, size: float, racks: dict[int, set[str]]) -> int | None:
        """Return a partition of about this size that may move; None if there is none.

        `racks`: by worker, racks to which one of its replicas may move, as far as computed.
        """
        for tried, (_, at) in enumerate(self._nearest(old, size)):
            if self._is_legal(at, old, new):
                return at
            if tried == _TRIED and self._is_rack_closed(old, new, racks):
                return None
        return None

    def _is_rack_closed(self, old: int, new: int, racks: dict[int, set[str]]) -> bool:
        """Return whether no replica on `old` may move to the rack of `new`."""
        if not self._checks_racks:
            return False
        if old not in racks:
            here, places = self._rack[old], set(self._rack.values())
            rows = {tuple([self._rack.get(w) for w in self.replicas[at]]) for _, at in self.on[old]}
            racks[old] = {here}.union(
                *({place for place in places if row.count(place) < row.count(here)} for row in rows)
            )
        return self._rack[new] not in racks[old]

    # Step 3

    def even_bytes(self, tolerance: float, *, keeps_counts: bool) -> bool:
        """Move and exchange replicas until the bytes of all workers are within the tolerance.

        Ends earlier if nothing brings two workers closer. Return whether anything moves.
        `keeps_counts`: the numbers of replicas stay as equal as they are.
        """
        mean = sum(self.bytes[each] for each in self.active) / len(self.active)
        within = (mean * (1 - tolerance), mean * (1 + tolerance))
        left = _MOST_EXCHANGES * len(self.active)
        has_exchanged = False
        while exchanges := self._even_bytes_once(mean, within, left, keeps_counts=keeps_counts):
            left -= exchanges
            has_exchanged = True
        self._restore_order()
        return has_exchanged

    def _even_bytes_once(
        self, mean: float, within: tuple[float, float], most: int, *, keeps_counts: bool
    ) -> int:
        """Exchange replicas, at most this many; return their number. No giver is tried twice."""
        givers = set(self.active)
        racks: dict[int, set[str]] = {}
        done = 0
        while givers and done < most:
            old = max(givers, key=lambda each: (self.bytes[each], -each))
            for new in sorted(self.active, key=lambda each: (self.bytes[each], each)):
                if self.bytes[old] <= within[1] and self.bytes[new] >= within[0]:
                    givers.discard(old)
                    break
                if not self._is_rack_closed(old, new, racks) and self._exchange(
                    old, new, mean, keeps_counts=keeps_counts
                ):
                    done += 1
                    break
            else:
                givers.discard(old)
        return done

    def _exchange(self, old: int, new: int, mean: float, *, keeps_counts: bool) -> bool:
        """Move bytes from `old` to `new` so that both are closer; return whether it is possible."""
        gap = self.bytes[old] - self.bytes[new]
        if gap <= 0:
            return False
        excess, missing = self.bytes[old] - mean, mean - self.bytes[new]
        wanted = min(excess, missing) if min(excess, missing) > 0 else gap / 2
        best: tuple[float, int, int, int | None] | None = None  # miss, bytes, given, returned
        if not keeps_counts or self.count[old] > self.count[new]:
            at = self._near(old, new, 0, wanted, gap)
            if at is not None:
                best = (abs(self.size[at] - wanted), self.size[at], at, None)
        if keeps_counts:
            for size, back in self._returns(new, old):
                at = self._near(old, new, size, wanted, gap)
                if at is not None:
                    miss = abs(self.size[at] - size - wanted)
                    found = (miss, self.size[at] + size, at, back)
                    if best is None or found[:2] < best[:2]:
                        best = found
        if best is None:
            best = self._any_exchange(old, new, gap, keeps_counts=keeps_counts)
        if best is None:
            return False
        _, _, at, returned = best
        self._replace(at, old, new)
        if returned is not None:
            self._replace(returned, new, old)
        return True

    def _near(self, old: int, new: int, size: int, wanted: float, gap: int) -> int | None:
        """Return a partition with about `wanted` bytes more than `size`, and less than `gap`."""
        for tried, (given, at) in enumerate(self._nearest(old, size + wanted)):
            if tried == _TRIED:
                return None
            if 0 < given - size < gap and self._is_legal(at, old, new):
                return at
        return None

    def _returns(self, new: int, old: int) -> Iterator[tuple[int, int]]:
        """Yield replicas that `new` may give for another: small ones, which cost few bytes."""
        found = 0
        for tried, (size, at) in enumerate(self.on[new]):
            if tried == _TRIED or found == _TRIED_RETURNS:
                return
            if self._is_legal(at, new, old):
                found += 1
                yield size, at

    def _any_exchange(
        self, old: int, new: int, gap: int, *, keeps_counts: bool
    ) -> tuple[float, int, int, int | None] | None:
        """Return an exchange of replicas of equal rank by size; None if none is possible.

        Without racks and shared hosts there is one if `gap` exceeds the largest replica.
        """
        given = [(s, at) for s, at in self.on[old] if self._is_legal(at, old, new)]
        if not keeps_counts or self.count[old] > self.count[new]:
            for size, at in given:
                if 0 < size < gap:
                    return 0.0, size, at, None
        if keeps_counts:
            returned = [(s, at) for s, at in self.on[new] if self._is_legal(at, new, old)]
            for (size, at), (less, back) in zip(reversed(given), reversed(returned), strict=False):
                if 0 < size - less < gap:
                    return 0.0, size + less, at, back
        return None

    # Step 4

    def even_leaders(self, chosen: Iterable[int]) -> None:
        """Make the numbers of partitions that workers lead as equal as the replicas permit.

        Only the partitions `chosen`, by index, get another preferred leader.
        """
        leads = dict.fromkeys(self.active, 0)
        for row in self.replicas:
            if row[0] in leads:
                leads[row[0]] += 1
        led: dict[int, dict[int, set[int]]] = {each: {} for each in self.active}
        for at in chosen:
            row = self.replicas[at]
            if self.partitions[at].may_move and row[0] in led:
                for other in row[1:]:
                    if other in leads:
                        led[row[0]].setdefault(other, set()).add(at)
        givers = set(self.active)
        while givers:
            start = max(givers, key=lambda each: (leads[each], -each))
            path = _shortest(start, led, leads)
            if path is None:  # none of the workers that it reaches will have room later
                givers.discard(start)
                continue
            for old, new in pairwise(path):
                self._lead(min(led[old][new]), new, led)
            leads[path[0]] -= 1
            leads[path[-1]] += 1

    def _lead(self, at: int, new: int, led: dict[int, dict[int, set[int]]]) -> None:
        row = self.replicas[at]
        for other in row[1:]:
            if other in led:
                led[row[0]][other].discard(at)
        place = row.index(new)
        row[0], row[place] = row[place], row[0]
        for other in row[1:]:
            if other in led:
                led[new].setdefault(other, set()).add(at)

    # The result

    def changed(self) -> list[int]:
        """Return the indices of the partitions whose replicas differ from those of the cluster."""
        return [
            at
            for at, each in enumerate(self.partitions)
            if set(self.replicas[at]) != set(each.replicas)
        ]

    def _restore_order(self) -> None:
        """Put replicas that stay back in their places; several replacements may have moved them."""
        for at, each in enumerate(self.partitions):
            row = self.replicas[at]
            if tuple(row) == each.replicas:
                continue
            coming = iter([worker for worker in row if worker not in each.replicas])
            self.replicas[at] = [w if w in row else next(coming) for w in each.replicas]

    def plan(self) -> Plan:
        return Plan(
            tuple(
                [
                    PartitionMove(
                        each.topic, each.partition, each.replicas, tuple(row), each.size_bytes
                    )
                    for each, row in zip(self.partitions, self.replicas, strict=True)
                    if tuple(row) != each.replicas
                ]
            )
        )


def _shortest(
    start: int, led: dict[int, dict[int, set[int]]], leads: dict[int, int]
) -> list[int] | None:
    """Return the workers along which leaders are passed on, to one with at least two fewer.

    None: there is none.
    """
    came: dict[int, int | None] = {start: None}
    queue = deque([start])
    while queue:
        worker = queue.popleft()
        for other, partitions in sorted(led[worker].items()):
            if partitions and other not in came:
                came[other] = worker
                if leads[other] <= leads[start] - 2:
                    return _path(other, came)
                queue.append(other)
    return None


def _path(last: int, came: dict[int, int | None]) -> list[int]:
    path, worker = [last], came[last]
    while worker is not None:
        path.append(worker)
        worker = came[worker]
    return path[::-1]
