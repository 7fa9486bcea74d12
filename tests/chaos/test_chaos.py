"""A random selection of faults in sequence; `python -m tests.chaos` runs for longer."""

import os
from pathlib import Path
from random import Random

import pytest

from tests.chaos.load import Place, check_kept
from tests.chaos.storm import FAULTS, Storm, check_once_and_in_order, check_there, show
from tests.chaos.transfers import Transfer, check_sequence, check_transfers
from tests.nodes import elsewhere

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="starts a cluster of our own")

FAULT_COUNT = 7


@pytest.mark.conformance
@pytest.mark.timeout(3600)  # each fault may take PATIENCE_S
def test_what_was_acknowledged_survives_whatever_happens_to_nodes(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", Random().randrange(1 << 20)))
    show({"seed": seed})  # CHAOS_SEED=... draws the same faults
    storm = Storm(tmp_path, seed)
    try:
        storm.begin()
        for name in storm.random.sample(sorted(FAULTS), FAULT_COUNT):
            show(storm.happen(name))
        show(storm.end())
    finally:
        storm.remove()


def test_loss_repetition_and_disorder_are_noticed() -> None:
    found = {Place(0, 0): "0.1", Place(0, 1): "1.1", Place(0, 2): "0.2", Place(1, 0): "0.0"}
    check_once_and_in_order(found)
    check_kept({Place(0, 2): "0.2"}, found)
    for lost in ({Place(0, 3): "0.3"}, {Place(0, 2): "0.3"}):
        with pytest.raises(AssertionError, match="lost"):
            check_kept(lost, found)
    check_there({"0.2": 0}, found)
    with pytest.raises(AssertionError, match="lost"):
        check_there({"0.2": 1}, found)
    with pytest.raises(AssertionError, match="more than once"):
        check_once_and_in_order(found | {Place(1, 1): "0.1"})
    with pytest.raises(AssertionError, match="comes after"):
        check_once_and_in_order(found | {Place(0, 3): "0.0", Place(1, 0): "0.9"})


def test_torn_lost_and_unwanted_transactions_are_noticed() -> None:
    whole = {Place(0, 0): "0.0.0 -5", Place(1, 0): "0.0.0 5"}

    def transfer(**known: bool) -> dict[str, Transfer]:
        return {"0.0.0": Transfer([(0, -5), (1, 5)], **({"may_exist": True} | known))}

    for known in ({}, {"is_committed": True}):
        check_transfers(transfer(**known), whole)
    for known in ({}, {"may_exist": False}, {"is_aborted": True}):
        check_transfers(transfer(**known), {})
    with pytest.raises(AssertionError, match="lost"):
        check_transfers(transfer(is_committed=True), {})
    for known in ({"is_aborted": True}, {"may_exist": False}):
        with pytest.raises(AssertionError, match=r"aborted|not to be committed"):
            check_transfers(transfer(**known), whole)
    for torn in (
        {Place(0, 0): "0.0.0 -5"},
        whole | {Place(1, 1): "0.0.0 5"},
        {Place(0, 0): "0.0.0 -5", Place(2, 0): "0.0.0 5"},
    ):
        with pytest.raises(AssertionError, match="has"):
            check_transfers(transfer(), torn)
    with pytest.raises(AssertionError, match="unknown"):
        check_transfers({}, whole)


def test_records_of_a_replaced_client_are_noticed() -> None:
    found = {Place(0, 0): "0.0.7 1", Place(0, 2): "0.1.0 1", Place(0, 4): "0.0.8 1"}
    check_sequence({("0", 0): "a", ("0", 1): "b"}, found)
    with pytest.raises(AssertionError, match="comes after"):
        check_sequence({("0", 0): "a", ("0", 1): "a"}, found)
