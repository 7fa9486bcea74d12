import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.segments.epochs import LeaderEpochs, decode_leader_epochs

UNDEFINED = (-1, -1)


def test_an_epoch_ends_where_the_next_begins() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10), (5, 30)])
    assert epochs.end_offset_for(1, 50) == (1, 10)
    assert epochs.end_offset_for(2, 50) == (2, 30)
    assert epochs.end_offset_for(5, 50) == (5, 50)


def test_an_epoch_this_log_never_saw_is_answered_with_the_one_before() -> None:
    """KIP-279: a follower truncates to a common epoch even after fast changes of leader."""
    epochs = LeaderEpochs([(1, 0), (2, 10), (5, 30)])
    assert epochs.end_offset_for(3, 50) == (2, 30)
    assert epochs.end_offset_for(4, 50) == (2, 30)


def test_epochs_after_the_latest_are_undefined() -> None:
    assert LeaderEpochs().end_offset_for(0, 5) == UNDEFINED
    epochs = LeaderEpochs([(1, 0)])
    assert epochs.end_offset_for(2, 5) == UNDEFINED
    assert epochs.end_offset_for(-1, 5) == UNDEFINED


def test_an_epoch_before_the_first_known_ends_where_that_begins() -> None:
    assert LeaderEpochs([(4, 20), (6, 30)]).end_offset_for(2, 40) == (2, 20)


def test_kip_101_scenario_1_a_follower_that_lost_nothing_cuts_nothing() -> None:
    """The follower's high watermark lags by one record, the leader fails at that moment."""
    new_leader = LeaderEpochs([(0, 0)])
    assert new_leader.end_offset_for(0, 2) == (0, 2)


def test_kip_101_scenario_2_the_log_that_diverged_is_cut_where_it_did() -> None:
    # A held (0: m1), then lost power with m2 unsynced; B led epoch 1 and wrote m3 at offset 1.
    b = LeaderEpochs([(0, 0), (1, 1)])
    a = LeaderEpochs([(0, 0)])
    epoch, end = b.end_offset_for(a.latest, 2)
    assert (epoch, end) == (0, 1)


def test_what_contradicts_a_new_epoch_is_forgotten() -> None:
    epochs = LeaderEpochs([(1, 0), (3, 10), (4, 20)])
    assert epochs.assign(5, 15)
    assert epochs.entries == [(1, 0), (3, 10), (5, 15)]
    assert epochs.assign(2, 30)
    assert epochs.entries == [(1, 0), (2, 30)]
    assert not epochs.assign(2, 40)
    assert epochs.entries == [(1, 0), (2, 30)]


def test_truncation_from_both_ends() -> None:
    epochs = LeaderEpochs([(1, 0), (3, 10), (4, 20)])
    assert epochs.truncate_from_end(20)
    assert epochs.entries == [(1, 0), (3, 10)]
    assert epochs.latest == 3
    assert not epochs.truncate_from_end(11)
    assert epochs.truncate_from_start(12)
    assert epochs.entries == [(3, 12)]
    assert not epochs.truncate_from_start(12)
    assert epochs.truncate_from_end(0)
    assert epochs.latest == -1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), max_size=12))
def test_entries_always_ascend_and_survive_the_file(steps: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs()
    for epoch, start in steps:
        epochs.assign(epoch, start)
        entries = epochs.entries
        assert (epoch, start) in entries or any(e == epoch and s <= start for e, s in entries)
        for one, two in itertools.pairwise(entries):
            assert one[0] < two[0]
            assert one[1] < two[1]
    assert decode_leader_epochs(epochs.encode()).entries == epochs.entries


@pytest.mark.parametrize(
    "text", ["", "0\n", "1\n0\n", "0\n2\n1 0\n", "0\n2\n2 0\n1 5\n", "0\n1\nx y\n", "0\n1\n1 -2\n"]
)
def test_a_damaged_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_leader_epochs(text.encode())
