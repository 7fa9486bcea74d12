"""Which seed of which scenario `ci` plays next: plain state, without processes.

The order of seeds:

1. of each scenario its committed seeds, unless they are left out, and `FRESH_AT_LEAST` fresh seeds,
   even if the time is over;
2. until the time is over, further fresh seeds: those of scenarios with an open gate first, at most
   as many of each as its number of first seeds; then of all scenarios. The scenario that has used
   the least CPU for its share is the next one, so that each has its share at any cost of a seed;
3. after that, the first seeds of scenarios with an open gate, until it is met or none is left.

One seed of ten of each scenario is played again by another process.
"""

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.runner.batch import TWICE_EVERY, Totals
from metaquorum.simulations.runner.runs import Outcome
from metaquorum.simulations.scenarios.gates import CiShare

# Fresh seeds of each scenario that are played even if the time is over.
FRESH_AT_LEAST: Final = 4
PHASES: Final = ("seeds that are always played", "fresh seeds", "first seeds")


class Turn(NamedTuple):
    """One seed of a scenario, for one player."""

    scenario: str
    seed: int


class _Queue:
    """Seeds of one scenario that no player has yet, and the totals of those that were played."""

    def __init__(
        self, scenario: Scenario, share: CiShare, committed: Collection[int], first_fresh: int
    ) -> None:
        self.scenario = scenario
        self.share = share
        self.totals = Totals()
        self.used_s = 0.0
        # Number of seeds, and their CPU seconds, after which no gate was open.
        self.met_after: tuple[int, float] | None = None
        self.given = 0
        self.fresh_given = 0
        self.committed = deque(sorted(committed))
        self._fresh: Iterator[int] = (
            seed
            for seed in itertools.count(first_fresh)
            if seed >= share.seeds and seed not in committed
        )
        self.first = deque(seed for seed in range(share.seeds) if seed not in committed)

    @property
    def has_open_gate(self) -> bool:
        return bool(self.totals.open_gates(self.scenario))

    @property
    def used_of_share(self) -> float:
        return self.used_s / self.share.percent

    def fresh(self) -> int:
        self.fresh_given += 1
        return next(self._fresh)


class Schedule:
    """Chooses seeds of scenarios until `end_s`, and collects their outcomes."""

    def __init__(
        self,
        scenarios: Mapping[str, tuple[Scenario, CiShare, Collection[int]]],
        first_fresh: int,
        *,
        players: int,
        end_s: float,
    ) -> None:
        self._queues = {
            name: _Queue(scenario, share, committed, first_fresh)
            for name, (scenario, share, committed) in scenarios.items()
        }
        self._end_s = end_s
        self.players = players
        self.phase = PHASES[0]
        # Seeds that another player was given first, by the number of the player who repeats them.
        self._again: list[deque[Turn]] = [deque() for _ in range(players)]

    @property
    def totals(self) -> dict[str, Totals]:
        return {name: queue.totals for name, queue in self._queues.items()}

    @property
    def used_s(self) -> float:
        """CPU seconds of all outcomes, also of seeds that were played again."""
        return sum(queue.used_s for queue in self._queues.values())

    def met_after(self, scenario: str) -> tuple[int, float] | None:
        """Return after how many seeds and CPU seconds no gate was open; None if one is."""
        return self._queues[scenario].met_after

    @property
    def open_scenarios(self) -> list[str]:
        return [name for name, queue in self._queues.items() if queue.has_open_gate]

    def repeats(self, player: int) -> bool:
        """Return whether the next seed of a player is one that another player was given first."""
        return bool(self._again[player])

    def next(self, player: int, now: float) -> Turn | None:
        """Return what the player plays next; None if there is nothing left for it, now and later.

        Once nothing is left for one player, another one gets no seed that was not played before.
        """
        if self._again[player]:
            return self._again[player].popleft()
        self.phase, found = PHASES[0], self._needed()
        if found is None and now < self._end_s:
            self.phase, found = PHASES[1], self._fresh()
        elif found is None:
            self.phase, found = PHASES[2], self._first()
        if found is None:
            return None
        queue, seed = found
        turn = Turn(queue.scenario.name, seed)
        if queue.given % TWICE_EVERY == 0 and len(self._again) > 1:
            self._again[(player + 1) % len(self._again)].append(turn)
        queue.given += 1
        return turn

    def heard(self, outcome: Outcome, wall_s: float) -> None:
        queue = self._queues[outcome.scenario]
        queue.used_s += outcome.cpu_s
        queue.totals.wall_s += wall_s
        queue.totals.add(outcome)
        if queue.met_after is None and not queue.has_open_gate:
            queue.met_after = len(queue.totals.outcomes), queue.used_s

    def _needed(self) -> tuple[_Queue, int] | None:
        for queue in self._queues.values():
            if queue.committed:
                return queue, queue.committed.popleft()
            if queue.fresh_given < FRESH_AT_LEAST:
                return queue, queue.fresh()
        return None

    def _fresh(self) -> tuple[_Queue, int]:
        queues = self._queues.values()
        needy = [q for q in queues if q.fresh_given < q.share.seeds and q.has_open_gate]
        queue = min(needy or queues, key=lambda queue: queue.used_of_share)
        return queue, queue.fresh()

    def _first(self) -> tuple[_Queue, int] | None:
        needy = [q for q in self._queues.values() if q.first and q.has_open_gate]
        if not needy:
            return None
        queue = min(needy, key=lambda queue: queue.used_of_share)
        return queue, queue.first.popleft()
