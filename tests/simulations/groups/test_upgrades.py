"""Upgrades: a test of the rule finds each mutant, and so does the simulator; versions of nodes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from metaquorum.quorum.controller.features import FeatureUpdate
from metaquorum.simulations.groups.node_versions import NodeVersions
from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.mutants.upgrade_mutants import UPGRADE_MUTANTS
from tests.dataplane.handlers.groups import test_coordinators as groups
from tests.dataplane.replication import test_upgrading as upgrading
from tests.metaquorum.quorum.controller import test_features as features
from tests.metaquorum.quorum.controller import test_internal_topics as internal_topics
from tests.simulations.mutant_tests import assert_fails_with, assert_found


def groups_need_a_raised_metadata_version() -> None:
    with pytest.MonkeyPatch.context() as patch:
        groups.test_groups_need_a_raised_metadata_version(patch)


# Test that fails with each mutant.
FAILS: dict[str, Callable[[], None]] = {
    "level-of-groups-not-checked": groups_need_a_raised_metadata_version,
    "internal-topics-at-every-level": (
        internal_topics.test_a_cluster_of_the_first_level_is_told_how_to_raise_it
    ),
    "workers-not-asked": partial(
        features.test_a_level_that_cannot_be_is_refused_and_all_others_with_it,
        FeatureUpdate(features.LEVEL, 4),
        "Broker 7 only supports versions 1-3",
    ),
    "dependencies-of-levels-not-checked": (
        features.test_transaction_version_needs_the_level_of_transactions
    ),
    "controllers-not-asked": features.test_every_controller_must_have_told_what_it_supports,
    "earlier-worker-at-any-address": (
        upgrading.test_a_client_elsewhere_cannot_fetch_as_a_worker_that_is_not_upgraded
    ),
}

# Mutants that the simulator finds within few seeds, with the seed that finds it soonest.
SHOWS_SOON = {
    "level-of-groups-not-checked": 1,
    "internal-topics-at-every-level": 1,
    "workers-not-asked": 35,
    "dependencies-of-levels-not-checked": 35,
    "earlier-worker-at-any-address": 13,
}


def test_each_mistake_has_its_test() -> None:
    assert set(FAILS) == {mutant.name for mutant in UPGRADE_MUTANTS}


@pytest.mark.parametrize("name", list(FAILS))
def test_a_rule_of_levels_has_a_test_that_fails_without_it(name: str) -> None:
    assert_fails_with(MUTANTS[name], FAILS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS_SOON)
def test_a_mistake_shows_in_an_upgrade_of_a_cluster_in_trouble(name: str) -> None:
    assert_found(name, SHOWS_SOON[name])


class _Machine:
    name, runs = "node-1", 3


def test_an_installed_version_takes_effect_at_the_next_start() -> None:
    versions = NodeVersions()
    assert not versions.is_old("node-1", 3)
    versions.old.add("node-1")
    assert versions.is_old("node-1", 3)
    machine: Any = _Machine()
    versions.install(machine)
    assert versions.is_old("node-1", 3)
    assert not versions.is_old("node-1", 4)
    assert not versions.is_old("node-2", 1)
