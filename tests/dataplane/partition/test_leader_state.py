"""A leader's view of its replicas, alone and compared with a simple model of a partition."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaquorum.dataplane.partition.leader_state import UNKNOWN, IsrChange, Lag, LeaderState
from tests.examples import examples

LAG_S = 10.0


def anybody(replica_id: int, broker_epoch: int) -> bool:
    return True


def nobody(replica_id: int, broker_epoch: int) -> bool:
    return False


def led(isr: tuple[int, ...] = (1, 2, 3), start: int = 0) -> LeaderState:
    leadership = LeaderState(1, lambda: 100, leader_epoch=5, epoch_start_offset=start, lag_s=LAG_S)
    leadership.assign((1, 2, 3), isr, partition_epoch=7, now=0.0)
    return leadership


def fetch(
    leadership: LeaderState, replica_id: int, offset: int, end: int, now: float, *, high: int = 0
) -> None:
    """Handle a fetch as the partition does; `high` is its high watermark."""
    assert leadership.fetched(replica_id, 100 + replica_id, offset, 0, end, now)
    leadership.asked_to_join(replica_id, high, anybody)


def committed(leadership: LeaderState, end: int, now: float = 0.0, *, before: int = 0) -> int:
    return leadership.committed(before, end, 1, now, anybody)


def test_a_single_replica_commits_what_it_holds() -> None:
    leadership = LeaderState(1, lambda: 100, 5, 0, LAG_S)
    leadership.assign((1,), (1,), 0, 0.0)
    assert committed(leadership, 42) == 42


def test_the_high_watermark_is_the_least_of_the_isr() -> None:
    leadership = led()
    assert committed(leadership, 10) == 0
    fetch(leadership, 2, 8, 10, 0.0)
    assert committed(leadership, 10) == 0
    fetch(leadership, 3, 6, 10, 0.0)
    assert committed(leadership, 10) == 6


def test_the_high_watermark_never_moves_back() -> None:
    leadership = led()
    fetch(leadership, 2, 3, 10, 0.0)
    fetch(leadership, 3, 3, 10, 0.0)
    assert committed(leadership, 10, before=8) == 8


def test_nothing_is_committed_below_min_insync_replicas() -> None:
    leadership = led(isr=(1,))
    assert leadership.committed(4, 10, 2, 100.0, nobody) == 4
    assert leadership.committed(4, 10, 1, 100.0, nobody) == 10


def test_min_insync_replicas_above_the_replication_factor_asks_for_all() -> None:
    leadership = LeaderState(1, lambda: 100, 5, 0, LAG_S)
    leadership.assign((1,), (1,), 0, 0.0)
    assert leadership.committed(0, 9, 3, 0.0, anybody) == 9


def test_who_lags_behind_is_proposed_to_leave_after_the_lag_time() -> None:
    leadership = led()
    fetch(leadership, 2, 10, 10, 1.0)
    fetch(leadership, 3, 5, 10, 1.0)
    assert leadership.propose(5, 20, LAG_S, anybody) is None
    change = leadership.propose(5, 20, LAG_S + 0.5, anybody)
    assert change == IsrChange((1, 2), (100, 102), 5, 7, {3: Lag(15, LAG_S + 0.5)})


def test_who_stands_still_at_the_end_of_the_log_stays_in_sync() -> None:
    leadership = led()
    for replica_id in (2, 3):
        fetch(leadership, replica_id, 10, 10, 1.0)
    assert leadership.propose(10, 10, 1000.0, anybody) is None


def test_who_is_always_one_fetch_behind_stays_in_sync() -> None:
    leadership = led()
    for second in range(60):
        for replica_id in (2, 3):
            # Each fetch is at the log end offset of the previous fetch.
            fetch(leadership, replica_id, 10 * second, 10 * second + 10, float(second))
        assert leadership.propose(10 * second, 10 * second + 10, float(second), anybody) is None


def test_a_replica_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    leadership = led(isr=(1, 2), start=50)
    fetch(leadership, 2, 80, 80, 1.0)
    fetch(leadership, 3, 49, 80, 1.0)
    assert leadership.propose(30, 80, 1.0, anybody) is None  # 49 is before the epoch's start
    fetch(leadership, 3, 50, 80, 1.0)
    assert leadership.propose(60, 80, 1.0, anybody) is None
    change = leadership.propose(50, 80, 1.0, anybody)
    assert change is not None
    assert change.isr == (1, 2, 3)
    assert change.broker_epochs == (100, 102, 103)


def test_who_joins_has_the_lag_time_to_reach_the_end() -> None:
    """Below min.insync.replicas the high watermark does not advance while the log grows."""
    leadership = led(isr=(1,))
    fetch(leadership, 2, 4, 1000, 50.0)
    assert leadership.propose(4, 1000, 50.0, anybody) is not None
    leadership.assign((1, 2, 3), (1, 2), partition_epoch=8, now=50.0)
    fetch(leadership, 2, 5, 1000, 50.0 + LAG_S)
    assert leadership.lagging(1000, 50.0 + LAG_S) == []
    assert leadership.lagging(1000, 50.5 + LAG_S) == [2]


def test_a_change_of_the_isr_does_not_extend_the_time_of_who_stays_in_it() -> None:
    leadership = led(isr=(1, 2))
    fetch(leadership, 2, 4, 1000, 1.0)
    leadership.assign((1, 2, 3), (1, 2, 3), partition_epoch=8, now=8.0)
    assert leadership.lagging(1000, LAG_S) == []
    assert leadership.lagging(1000, 0.5 + LAG_S) == [2]
    assert leadership.lagging(1000, 8.5 + LAG_S) == [2, 3]


def left_alone() -> LeaderState:
    """Return a leader that 2 and 3 have left; both hold 4 of 10 records: the high watermark is 4.

    Below min.insync.replicas the high watermark stays there.
    """
    leadership = led()
    for replica_id in (2, 3):
        fetch(leadership, replica_id, 4, 4, 0.0, high=4)
    leadership.appended(10, {})
    assert leadership.propose(4, 10, LAG_S + 1, anybody) is not None
    assert leadership.assign((1, 2, 3), (1,), 8, LAG_S + 2)
    return leadership


def test_who_left_does_not_join_by_what_it_fetched_before() -> None:
    leadership = left_alone()
    assert leadership.propose(4, 10, LAG_S + 2, anybody) is None
    assert leadership.propose(4, 10, LAG_S + 60, anybody) is None
    fetch(leadership, 2, 4, 10, LAG_S + 60, high=4)
    change = leadership.propose(4, 10, LAG_S + 60, anybody)
    assert change is not None
    assert change.isr == (1, 2)


def test_a_fetch_before_the_leader_knows_that_the_replica_left_does_not_count() -> None:
    leadership = led()
    leadership.appended(10, {})
    fetch(leadership, 2, 10, 10, LAG_S)
    assert leadership.propose(0, 10, LAG_S + 1, anybody) is not None
    fetch(leadership, 3, 4, 10, LAG_S + 1)
    assert leadership.assign((1, 2, 3), (1, 2), 8, LAG_S + 2)
    assert leadership.propose(0, 10, LAG_S + 2, anybody) is None
    fetch(leadership, 3, 4, 10, LAG_S + 3)
    assert leadership.propose(0, 10, LAG_S + 3, anybody) is not None


def test_who_was_added_and_removed_again_needs_another_fetch() -> None:
    leadership = left_alone()
    fetch(leadership, 2, 4, 10, 20.0, high=4)
    assert leadership.propose(4, 10, 20.0, anybody) is not None
    assert leadership.assign((1, 2, 3), (1, 2), 9, 20.0)
    assert leadership.propose(4, 10, 21.0 + LAG_S, anybody) is not None
    assert leadership.assign((1, 2, 3), (1,), 10, 21.0 + LAG_S)
    assert leadership.propose(4, 10, 21.0 + LAG_S, anybody) is None


def test_who_is_removed_soon_after_it_joined_needs_another_fetch() -> None:
    """The controller may remove it, as its worker is fenced, while its last fetch is recent."""
    leadership = left_alone()
    fetch(leadership, 2, 4, 10, 20.0, high=4)
    assert leadership.propose(4, 10, 20.0, anybody) is not None
    assert leadership.assign((1, 2, 3), (1, 2), 9, 20.0)
    assert leadership.assign((1, 2, 3), (1,), 10, 21.0)
    assert leadership.propose(4, 10, 21.0, anybody) is None
    fetch(leadership, 2, 4, 10, 22.0, high=4)
    assert leadership.propose(4, 10, 22.0, anybody) is not None


def test_who_joined_and_was_removed_in_one_publication_needs_another_fetch() -> None:
    """The leader sees the second of the two epochs alone."""
    leadership = left_alone()
    fetch(leadership, 2, 4, 10, 20.0, high=4)
    assert leadership.propose(4, 10, 20.0, anybody) is not None
    assert leadership.assign((1, 2, 3), (1,), 10, 21.0)
    assert leadership.propose(4, 10, 21.0, anybody) is None
    fetch(leadership, 2, 4, 10, 22.0, high=4)
    assert leadership.propose(4, 10, 22.0, anybody) is not None


def test_a_replica_that_may_not_join_does_not_hold_the_high_watermark() -> None:
    leadership = led(isr=(1,))
    fetch(leadership, 2, 10, 10, 1.0)
    assert leadership.committed(10, 12, 1, 2.0, anybody) == 10
    assert leadership.committed(10, 12, 1, 2.0, nobody) == 12


def test_a_replica_whose_log_is_lost_is_not_waited_for_and_not_proposed() -> None:
    leadership = led(isr=(1,))
    fetch(leadership, 2, 10, 10, 1.0, high=10)
    leadership.forget(2)
    assert leadership.committed(10, 12, 1, 2.0, anybody) == 12
    assert leadership.propose(10, 10, 2.0, anybody) is None
    follower = leadership.follower(2)
    assert follower is not None
    assert follower.log_end_offset == UNKNOWN


def test_a_fetch_of_the_time_when_a_replica_was_fenced_does_not_count() -> None:
    leadership = left_alone()
    assert leadership.fetched(2, 102, 4, 0, 10, 20.0)
    assert not leadership.asked_to_join(2, 4, nobody)
    assert leadership.propose(4, 10, 20.0, anybody) is None


def test_who_was_refused_is_proposed_again_by_its_next_fetch() -> None:
    leadership = left_alone()
    for replica_id in (2, 3):
        fetch(leadership, replica_id, 4, 10, 20.0, high=4)
    change = leadership.propose(4, 10, 20.0, anybody)
    assert change is not None
    fetch(leadership, 2, 4, 10, 20.5, high=4)
    leadership.refused(change)
    assert leadership.propose(4, 10, 20.5, anybody) is None
    fetch(leadership, 3, 4, 10, 21.0, high=4)
    change = leadership.propose(4, 10, 21.0, anybody)
    assert change is not None
    assert change.isr == (1, 3)


def test_who_was_refused_does_not_keep_others_in_the_isr() -> None:
    leadership = led(isr=(1, 2))
    leadership.appended(10, {})
    fetch(leadership, 3, 10, 10, LAG_S + 1)
    both = leadership.propose(0, 10, LAG_S + 1, anybody)
    assert both is not None
    assert both.isr == (1, 3)
    leadership.refused(both)
    change = leadership.propose(0, 10, LAG_S + 1, anybody)
    assert change is not None
    assert change.isr == (1,)


def test_a_fetch_that_waited_for_the_lag_time_to_be_proposed_does_not_count() -> None:
    leadership = left_alone()
    fetch(leadership, 2, 4, 10, 20.0, high=4)
    change = leadership.propose(4, 10, 20.0, anybody)
    assert change is not None
    fetch(leadership, 3, 4, 10, 20.0, high=4)
    leadership.assign((1, 2, 3), (1, 2), 9, 20.5 + LAG_S)  # the controller was long unreachable
    assert leadership.propose(4, 10, 20.5 + LAG_S, anybody) is None


def test_a_fenced_replica_or_an_old_incarnation_does_not_join() -> None:
    leadership = led(isr=(1, 2))
    fetch(leadership, 2, 10, 10, 1.0)
    fetch(leadership, 3, 10, 10, 1.0)
    assert leadership.propose(10, 10, 1.0, nobody) is None
    assert leadership.propose(10, 10, 1.0, lambda _, epoch: epoch == 103) is not None


def test_a_fetch_by_an_older_incarnation_tells_nothing() -> None:
    leadership = led()
    leadership.fetched(2, 200, 4, 0, 10, 1.0)
    leadership.fetched(2, 199, 10, 0, 10, 1.0)
    follower = leadership.follower(2)
    assert follower is not None
    assert follower.log_end_offset == 4


def test_a_stranger_is_no_replica() -> None:
    assert not led().fetched(9, 1, 10, 0, 10, 0.0)


def test_who_is_proposed_to_join_holds_the_high_watermark_already() -> None:
    leadership = led(isr=(1, 2))
    fetch(leadership, 2, 10, 10, 0.0)
    fetch(leadership, 3, 10, 10, 0.0)
    assert leadership.propose(10, 10, 0.0, anybody) is not None
    fetch(leadership, 2, 20, 20, 0.0)
    assert leadership.committed(10, 20, 1, 0.0, nobody) == 10


def test_who_is_proposed_to_leave_holds_the_high_watermark_still() -> None:
    leadership = led()
    fetch(leadership, 2, 10, 10, 0.0)
    fetch(leadership, 3, 5, 10, 0.0)
    assert leadership.propose(5, 20, 100.0, anybody) is not None
    fetch(leadership, 2, 20, 20, 100.0)
    assert committed(leadership, 20, 100.0, before=5) == 5
    assert leadership.assign((1, 2, 3), (1, 2), 8, 100.0)
    assert committed(leadership, 20, 100.0, before=5) == 20


def test_one_proposal_at_a_time() -> None:
    leadership = led(isr=(1,))
    fetch(leadership, 2, 10, 10, 0.0)
    change = leadership.propose(10, 10, 0.0, anybody)
    assert change is not None
    fetch(leadership, 3, 10, 10, 0.0)
    assert leadership.propose(10, 10, 0.0, anybody) is None
    leadership.refused(change)
    assert leadership.propose(10, 10, 0.0, anybody) is not None


def test_a_lost_proposal_counts_until_the_partition_epoch_moves() -> None:
    leadership = led(isr=(1,))
    fetch(leadership, 2, 10, 10, 0.0)
    change = leadership.propose(10, 10, 0.0, anybody)
    assert change is not None
    leadership.lost(change)
    leadership.refused(change)
    assert 2 in leadership.maximal_isr
    leadership.assign((1, 2, 3), (1,), 8, 0.0)
    assert leadership.maximal_isr == {1}


def test_old_news_of_the_metadata_changes_nothing() -> None:
    leadership = led()
    assert not leadership.assign((1,), (1,), 6, 0.0)
    assert leadership.isr == (1, 2, 3)


def test_who_stood_at_the_end_was_caught_up_as_long_as_it_was_heard_of() -> None:
    leadership = led()
    leadership.appended(10, {})
    for replica_id in (2, 3):
        fetch(leadership, replica_id, 10, 10, 1.0)
    # An hour later: 2 has fetched other partitions meanwhile, 3 has not fetched.
    leadership.appended(11, {2: 3600.0, 3: 5.0})
    assert leadership.lagging(11, 3601.0) == [3]
    assert leadership.lagging(11, 3600.0 + LAG_S + 1) == [2, 3]


class WholePartition(RuleBasedStateMachine):
    """Leader 1 with followers 2 and 3, a controller, and responses that are lost or late.

    At every moment each member of the controller's ISR holds all committed records.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.held = {1: 0, 2: 0, 3: 0}
        self.leadership = LeaderState(1, lambda: 100, 5, 0, LAG_S)
        self.true_isr: tuple[int, ...] = (1, 2)
        self.true_epoch = 0
        self.in_flight: list[IsrChange] = []
        self.high_watermark = 0
        self.leadership.assign((1, 2, 3), self.true_isr, 0, 0.0)

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.held[1] += count

    @rule(replica_id=st.sampled_from((2, 3)), all_of_it=st.booleans())
    def fetch(self, replica_id: int, all_of_it: bool) -> None:
        self.commit()
        end = self.held[1]
        self.leadership.fetched(
            replica_id, 100 + replica_id, self.held[replica_id], 0, end, self.now
        )
        self.leadership.asked_to_join(replica_id, self.high_watermark, anybody)
        if all_of_it:
            self.held[replica_id] = end

    @rule(seconds=st.floats(0.5, 20.0))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def commit(self) -> None:
        # No replica outside the ISR holds back the high watermark: that would hide missing waits.
        high_watermark = self.leadership.committed(
            self.high_watermark, self.held[1], 1, self.now, nobody
        )
        assert high_watermark >= self.high_watermark
        self.high_watermark = high_watermark

    @rule()
    def propose(self) -> None:
        change = self.leadership.propose(self.high_watermark, self.held[1], self.now, anybody)
        if change is not None:
            self.in_flight.append(change)

    @precondition(lambda self: self.leadership.proposed is not None)
    @rule()
    def lose_and_ask_again(self) -> None:
        change = self.leadership.proposed
        assert change is not None
        self.leadership.lost(change)
        self.in_flight.append(change)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), refuse=st.booleans(), told=st.booleans())
    def decide(self, data: st.DataObject, refuse: bool, told: bool) -> None:
        """Decide one of the controller's pending requests, in any order."""
        at = data.draw(st.integers(0, len(self.in_flight) - 1))
        change = self.in_flight.pop(at)
        if change.partition_epoch != self.true_epoch:
            return  # the leader waits for the metadata
        if refuse:
            if told:
                self.leadership.refused(change)
            elif self.leadership.proposed is change:
                self.in_flight.append(change)
            return
        self.true_isr, self.true_epoch = change.isr, self.true_epoch + 1

    @precondition(lambda self: len(self.true_isr) > 1)
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.true_isr[1:]))
        self.true_isr = tuple(r for r in self.true_isr if r != gone)
        self.true_epoch += 1

    @rule()
    def follow_the_metadata(self) -> None:
        self.leadership.assign((1, 2, 3), self.true_isr, self.true_epoch, self.now)

    @invariant()
    def everybody_in_sync_holds_what_is_committed(self) -> None:
        for replica_id in self.true_isr:
            assert self.held[replica_id] >= self.high_watermark


TestWholePartition = WholePartition.TestCase
TestWholePartition.settings = examples(150, stateful_step_count=40)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 30)), max_size=20))
def test_a_follower_that_never_fetches_leaves_after_the_lag_time(
    ends: list[tuple[int, float]],
) -> None:
    leadership = led()
    now, end = 0.0, 1
    for more, seconds in ends:
        now, end = now + seconds, end + more
        gone = leadership.lagging(end, now)
        assert (2 in gone) == (now > LAG_S)
    assert leadership.follower(2) is not None
    assert leadership.follower(2).log_end_offset == UNKNOWN  # type: ignore[union-attr]
