"""Which seeds `ci` plays: always, until the time is over, and while a gate is not met."""

from collections.abc import Collection
from dataclasses import replace

from metaquorum.simulations.runner.batch import TWICE_EVERY
from metaquorum.simulations.runner.runs import Outcome
from metaquorum.simulations.runner.schedule import FRESH_AT_LEAST, Schedule
from metaquorum.simulations.scenarios.gates import CiShare
from metaquorum.simulations.scenarios.registry import SCENARIOS

FRESH = 5_000_000
RESTART, QUOTAS = "restart", "quotas"
EVENT = "it happens"


def schedule(
    *names: str,
    gates: tuple[str, ...] = (),
    committed: Collection[int] = (),
    shares: tuple[CiShare, ...] = (CiShare(10, 20), CiShare(10, 20)),
    end_s: float = 0.0,
) -> Schedule:
    scenarios = [replace(SCENARIOS[name], gates=gates, checkers=()) for name in names]
    rows = zip(names, scenarios, shares, strict=False)
    table = {name: (scenario, share, committed) for name, scenario, share in rows}
    return Schedule(table, FRESH, players=2, end_s=end_s)


def played(
    made: Schedule, *, now: float = 0.0, meets: int | None = None, most: int = 1000
) -> list[tuple[str, int]]:
    """Play all that player 0 gets, a second of CPU each; the seed `meets` has the event."""
    turns: list[tuple[str, int]] = []
    while len(turns) < most and (turn := made.next(0, now)) is not None:
        counts = {EVENT: 1} if turn.seed == meets else {}
        made.heard(Outcome(turn.scenario, turn.seed, "d", counts=counts, cpu_s=1.0), 1.0)
        turns.append((turn.scenario, turn.seed))
    return turns


def test_committed_seeds_and_a_few_fresh_ones_are_played_even_if_the_time_is_over() -> None:
    seeds = [seed for _, seed in played(schedule(RESTART, committed=(7, 3, FRESH + 1)))]
    fresh = [FRESH, *range(FRESH + 2, FRESH + 1 + FRESH_AT_LEAST)]
    assert seeds == [3, 7, FRESH + 1, *fresh]


def test_each_scenario_gets_its_share_of_the_cpu_until_the_time_is_over() -> None:
    made = schedule(RESTART, QUOTAS, shares=(CiShare(10, 20), CiShare(30, 20)), end_s=5.0)
    turns = played(made, now=4.9, most=400)
    numbers = [sum(name == one for name, _ in turns) for one in (RESTART, QUOTAS)]
    assert numbers == [100, 300]
    assert made.used_s == 400
    assert played(made, now=5.0) == []


def test_scenarios_with_open_gates_come_first_with_a_bounded_number_of_fresh_seeds() -> None:
    made = schedule(RESTART, QUOTAS, gates=(EVENT,), end_s=5.0)
    begin = played(made, most=2 * FRESH_AT_LEAST)
    assert begin == [(name, FRESH + n) for name in (RESTART, QUOTAS) for n in range(FRESH_AT_LEAST)]
    made.heard(Outcome(QUOTAS, 0, "d", counts={EVENT: 1}), 1.0)
    assert made.open_scenarios == [RESTART]
    turns = played(made, most=30)
    assert turns[: 20 - FRESH_AT_LEAST] == [(RESTART, FRESH + n) for n in range(FRESH_AT_LEAST, 20)]
    assert {QUOTAS} == {name for name, _ in turns[20 - FRESH_AT_LEAST :]}


def test_the_first_seeds_are_played_until_a_gate_is_met_or_none_is_left() -> None:
    for meets, first in ((None, 20), (2, 3), (FRESH, 0)):
        made = schedule(RESTART, gates=(EVENT,), committed=(50,))
        seeds = [seed for _, seed in played(made, meets=meets)]
        assert seeds == [50, *range(FRESH, FRESH + FRESH_AT_LEAST), *range(first)]
        assert made.open_scenarios == ([RESTART] if meets is None else [])
        met_after = {None: None, 2: (8, 8.0), FRESH: (2, 2.0)}
        assert made.met_after(RESTART) == met_after[meets]


def test_one_seed_of_ten_is_played_again_by_another_process() -> None:
    made = schedule(RESTART, end_s=5.0)
    seeds = [seed for _, seed in played(made, most=21)]
    again = [turn.seed for turn in (made.next(1, 9.0) for _ in range(3)) if turn is not None]
    assert again == seeds[::TWICE_EVERY]
    assert made.next(1, 9.0) is None
