"""Each committed seed has a mutant with its fault, which worlds of today find, or says why not."""

import tomllib
from collections.abc import Mapping
from typing import Final

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.scenarios.registry import SCENARIOS
from tests.nodes import ROOT
from tests.simulations.mutant_tests import assert_found

KNOWN = tomllib.loads((ROOT / "simulations/seeds.toml").read_text())["seed"]
# Mutants that were planted for the fault of a committed seed, with the cheapest seed that finds
# each. Tests of their scenarios have the others.
SOONEST: Final[Mapping[str, int]] = {}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['scenario']}-{known['seed']}")
def test_a_seed_names_its_mutant_or_says_that_the_simulator_was_mended(
    known: dict[str, object],
) -> None:
    assert known["scenario"] in SCENARIOS
    assert known["found"]
    fields = set(known) - {"scenario", "seed", "found"}
    if "mended" in fields:
        assert fields == {"mended"}
        assert known["mended"] == "simulator"
    elif known["mutant"]:
        assert fields == {"mutant"}
        assert known["mutant"] in MUTANTS
    else:
        assert fields == {"mutant", "why"}
        assert known["why"]


def test_every_mutant_here_is_that_of_a_seed() -> None:
    assert set(SOONEST) <= {known.get("mutant") for known in KNOWN}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOONEST)
def test_the_fault_of_a_seed_is_found(name: str) -> None:
    assert_found(name, SOONEST[name])
