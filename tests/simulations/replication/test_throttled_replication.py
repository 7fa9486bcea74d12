"""Mutants of replication quotas: the test of the rule finds each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from metaquorum.simulations.mutants.registry import MUTANTS
from tests.dataplane.replication.test_followed_partitions import (
    test_partitions_in_sync_or_caught_up_are_not_left_out as follower_left_out,
)
from tests.dataplane.replication.throttling.test_throttling import (
    test_in_sync_replicas_count_and_are_never_held_back as in_sync,
)
from tests.dataplane.replication.throttling.test_throttling import (
    test_throttled_replicas_move_at_the_rate_of_their_side as rate,
)
from tests.simulations.mutant_tests import assert_fails_with


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("in-sync-omitted-by-leader", lambda _: in_sync("leader")),
        ("in-sync-left-out-by-follower", follower_left_out),
        ("throttle-ignored", lambda _: rate("leader")),
    ],
)
def test_each_mutant_is_found_by_the_test_of_its_rule(
    tmp_path: Path, name: str, test: Callable[[Path], None]
) -> None:
    runs = iter(range(10))

    def run() -> None:
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        test(folder)

    assert_fails_with(MUTANTS[name], run)
