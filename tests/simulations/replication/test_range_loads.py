"""Mutants of loads of ranges: a test of the reader finds each, and the simulator some."""

from collections.abc import Callable
from functools import partial

import pytest

from metaquorum.simulations.mutants.load_mutants import LOAD_MUTANTS
from metaquorum.simulations.mutants.registry import MUTANTS
from tests.metaquorum.spark import test_range_reader as reader
from tests.simulations.mutant_tests import assert_fails_with, assert_found

# Test of the reader that fails with each mutant.
FAILS: dict[str, Callable[[], None]] = {
    "plan-epoch-not-compared": partial(
        reader.test_records_that_were_replaced_are_not_taken_for_those_of_the_plan, 50
    ),
    "cut-taken-for-compaction": (
        reader.test_a_hole_before_replaced_records_is_compacted_up_to_the_cut_only
    ),
    "lag-taken-for-cut": reader.test_a_high_watermark_that_lags_is_waited_for,
    "topic-by-name": partial(reader.test_a_topic_that_vanishes_in_mid_range, True),
    "topic-not-checked": partial(reader.test_a_topic_that_was_made_anew_is_not_read, 12),
    "restarted-one-late": partial(
        reader.test_a_leader_that_moves_or_dies_is_found_again_and_nothing_is_doubled, 1
    ),
    "position-behind-gap": reader.test_retention_that_overtakes_the_reader,
    "deleted-skipped": reader.test_deleted_records_are_an_error_or_a_gap,
    "loss-not-told": reader.test_deleted_records_are_an_error_or_a_gap,
    "answer-of-another-fetch": reader.test_a_range_that_was_left_half_way_is_read_again,
    "batch-from-its-start": reader.test_deleted_records_are_an_error_or_a_gap,
    "batch-to-its-end": reader.test_records_behind_the_range_are_not_read,
    "unknown-policy-not-compacted": (
        reader.test_a_hole_in_a_topic_of_an_unknown_policy_is_no_data_loss
    ),
}
# Mutants that the simulator finds within few seeds, with the seed that finds it soonest; the
# others take many more.
SHOWS_SOON = {"position-behind-gap": 0, "batch-from-its-start": 2}


def test_each_mistake_has_its_test() -> None:
    assert set(FAILS) == {mutant.name for mutant in LOAD_MUTANTS}


@pytest.mark.parametrize("name", list(FAILS))
def test_the_reader_has_a_test_that_fails_without_the_rule(name: str) -> None:
    assert_fails_with(MUTANTS[name], FAILS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS_SOON)
def test_a_mistake_shows_in_loads_of_a_world_in_trouble(name: str) -> None:
    assert_found(name, SHOWS_SOON[name])
