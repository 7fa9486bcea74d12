"""Follower's side of a fetch session, compared with a model of the leader's session."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.fetch.session_client import (
    FetchLimits,
    FetchSessionClient,
    Key,
    RequestedPartition,
)
from metaquorum.wire.messages.fetch import FetchRequest, FetchResponse
from metaquorum.wire.primitives.errors import ErrorCode

TOPIC = bytes(range(16))
PARTITIONS = range(4)


def wanted(partition: int, offset: int) -> RequestedPartition:
    return RequestedPartition(TOPIC, partition, 1, offset, 1, 0, 1000)


@dataclass
class Leader:
    """Model of a leader: the fetch offsets of its session, from the requests received."""

    session_id: int = 0
    epoch: int = 0
    offsets: dict[Key, int] = field(default_factory=dict)

    def answer(self, request: FetchRequest) -> FetchResponse:
        if request.session_epoch == 0:
            self.session_id, self.epoch, self.offsets = self.session_id + 1, 0, {}
        elif (request.session_id, request.session_epoch) != (self.session_id, self.epoch):
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        for topic in request.topics:
            for row in topic.partitions:
                self.offsets[topic.topic_id, row.partition] = row.fetch_offset
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                self.offsets.pop((gone.topic_id, index), None)
        self.epoch += 1
        return FetchResponse(session_id=self.session_id)


def session() -> FetchSessionClient:
    return FetchSessionClient(2, lambda: 7, FetchLimits(500, 1, 1 << 20))


def test_what_has_not_changed_is_not_asked_again() -> None:
    asking, leader = session(), Leader()
    for partition in PARTITIONS:
        asking.want(wanted(partition, 0))
    assert asking.answered(leader.answer(asking.request())) is ErrorCode.NONE
    asking.want(wanted(2, 5))
    asking.want(wanted(3, 0))
    request = asking.request()
    assert [row.partition for topic in request.topics for row in topic.partitions] == [2]
    asking.answered(leader.answer(request))
    assert asking.request().topics == []


def test_a_worker_that_has_registered_again_asks_for_all_with_its_new_broker_epoch() -> None:
    epochs = [7]
    asking = FetchSessionClient(2, lambda: epochs[-1], FetchLimits(500, 1, 1 << 20))
    leader = Leader()
    for partition in PARTITIONS:
        asking.want(wanted(partition, 0))
    asking.answered(leader.answer(asking.request()))
    assert asking.request().replica_state.replica_epoch == 7  # type: ignore[union-attr]
    epochs.append(9)
    request = asking.request()
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 9)  # type: ignore[union-attr]
    assert (request.session_id, request.session_epoch) == (0, 0)
    rows = [row.partition for topic in request.topics for row in topic.partitions]
    assert rows == list(PARTITIONS)
    asking.answered(leader.answer(request))
    assert asking.request().topics == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("want"), st.sampled_from(PARTITIONS), st.integers(0, 3)),
            st.tuples(st.just("drop"), st.sampled_from(PARTITIONS), st.just(0)),
            st.tuples(
                st.sampled_from(("ask", "lose", "forget", "restart")), st.just(0), st.just(0)
            ),
        ),
        max_size=40,
    )
)
def test_the_leader_knows_what_is_wanted_after_each_answer(
    steps: list[tuple[str, int, int]],
) -> None:
    asking, leader = session(), Leader()
    model: dict[Key, int] = {}
    for name, partition, offset in steps:
        if name == "want":
            asking.want(wanted(partition, offset))
            model[TOPIC, partition] = offset
        elif name == "drop":
            asking.drop((TOPIC, partition))
            model.pop((TOPIC, partition), None)
        elif name == "restart":
            asking.restart()
        elif name == "forget":
            leader.session_id += 1
        elif name == "lose":  # the connection ends before the response
            leader.answer(asking.request())
            asking.restart()
        elif asking.answered(leader.answer(asking.request())) is ErrorCode.NONE:
            assert leader.offsets == model
        else:
            assert not asking.is_open
    asking.answered(leader.answer(asking.request()))
    asking.answered(leader.answer(asking.request()))
    assert leader.offsets == model
    assert len(asking) == len(model)
