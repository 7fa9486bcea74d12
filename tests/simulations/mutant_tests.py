"""A mutant is found by the test of its rule, which passes without the mutant, and by seeds."""

from collections.abc import Callable
from typing import Final

import pytest

from metaquorum.simulations.kernel.mutation import Mutant, mutated
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.runner.runs import run_seed

# Seeds of which one finds a mutant in any case: some mutants need a rare world.
SEEDS: Final = range(48)


def assert_fails_with(mutant: Mutant, test: Callable[[], object]) -> None:
    test()

    def fails() -> bool:
        try:
            test()
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails
            return True
        return False

    with mutated(mutant):
        assert fails()


def assert_found(name: str, soonest: int) -> None:
    """Assert that a seed finds the mutant; worlds end as soon as they do.

    `soonest` is the cheapest seed that is known to find it. `SEEDS` are played only if it does
    not: a change of the shipped code may have made other worlds of the same seeds.
    """
    mutant = MUTANTS[name]
    for seed in (soonest, *(seed for seed in SEEDS if seed != soonest)):
        outcome, _ = run_seed(mutant.scenario, seed, mutant=name, ends_with=mutant.found_as)
        if {violated.split()[0] for violated, _ in outcome.violations} & set(mutant.found_as):
            return
    pytest.fail(f"{name} is not found")
