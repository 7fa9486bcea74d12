"""Rules that protect the state of producers: a test finds each mutant, and so does a scenario."""

from collections.abc import Callable
from pathlib import Path

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from metaquorum.simulations.mutants.validation_mutants import PRODUCER_MUTANTS
from tests.dataplane.handlers import test_new_producers as new_producers
from tests.dataplane.handlers import test_produce_transactions as transactions
from tests.dataplane.log.segments import test_producers as producers
from tests.dataplane.log.segments import test_verification as verification
from tests.dataplane.quotas import test_producer_admission as admission
from tests.simulations.mutant_tests import assert_fails_with, assert_found

# Test of the part that fails with each mutant; its argument is a folder.
FAILS: dict[str, Callable[[Path], None]] = {
    "producers-evicted": lambda _: (
        producers.test_no_number_of_other_producers_removes_a_producer_before_its_expiry()
    ),
    "one-share-for-all": lambda _: admission.test_clients_that_use_up_their_share_stop_no_others(),
    "forged-producers-appended": lambda _: (
        admission.test_an_id_that_is_not_given_out_is_no_use_and_refused_for_good()
    ),
    "new-producers-forged": lambda _: (
        new_producers.test_an_id_of_a_block_that_the_leader_does_not_know_yet_is_not_forged(10)
    ),
    "verifications-kept": lambda folder: transactions.test_a_request_leaves_no_verification_behind(
        folder, transactions.VERIFIES
    ),
    "verifications-of-others-ended": lambda _: (
        verification.test_a_request_that_is_over_ends_its_own_alone()
    ),
}
# A seed that finds each soon.
SHOWS_SOON = {
    "producers-evicted": 4,
    "one-share-for-all": 7,
    "forged-producers-appended": 0,
    "new-producers-forged": 1,
    "verifications-kept": 17,
    "verifications-of-others-ended": 31,
}


def test_each_mutant_has_its_test() -> None:
    assert set(FAILS) == set(SHOWS_SOON) == {mutant.name for mutant in PRODUCER_MUTANTS}


@pytest.mark.parametrize("name", list(FAILS))
def test_each_mutant_is_found_by_the_test_of_its_rule(tmp_path: Path, name: str) -> None:
    folders = (tmp_path / str(number) for number in range(2))

    def test() -> None:
        folder = next(folders)
        folder.mkdir()
        FAILS[name](folder)

    assert_fails_with(MUTANTS[name], test)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SHOWS_SOON))
def test_each_mutant_is_found_by_the_scenario(name: str) -> None:
    assert_found(name, SHOWS_SOON[name])
