import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.moves import plan as plans
from metaquorum.metadata.moves.plan import (
    PartitionMove,
    Plan,
    PlanError,
    read_plan,
    read_topics,
    reversed_plan,
    write_plan,
)

WORKERS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4, unique=True).map(tuple)
MOVES = st.lists(
    st.builds(
        PartitionMove,
        st.from_regex("[a-zA-Z0-9_-]{1,20}", fullmatch=True),
        st.integers(0, 2**31 - 1),
        WORKERS | st.just(()),
        WORKERS,
        st.none() | st.integers(0, 2**63 - 1),
    ),
    max_size=8,
    unique_by=lambda move: (move.topic, move.partition),
).map(tuple)
PLANS = st.builds(Plan, MOVES, st.none() | st.integers(1, 2**63 - 1), st.none() | st.text())
ORDERS = PartitionMove("orders", 0, (1, 2), (2, 3), 1000)


def row(**fields: object) -> str:
    """Return a plan of one partition with these fields."""
    whole = {"topic": "orders", "partition": 0, "replicas": [2, 3]} | fields
    return json.dumps({"version": 1, "partitions": [whole]})


@given(PLANS)
def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert read_plan(write_plan(plan)) == plan


def test_the_form_of_the_file() -> None:
    """Users keep plans: a later version reads the files of this one."""
    assert write_plan(Plan((ORDERS, PartitionMove("a", 1, (), (4,))), 10_000_000, "abc")) == (
        '{"version": 1, "cluster_id": "abc", "throttle_bytes_per_s": 10000000,\n'
        ' "partitions": [\n'
        '  {"topic": "orders", "partition": 0, "replicas": [2, 3], "current": [1, 2],'
        ' "size_bytes": 1000},\n'
        '  {"topic": "a", "partition": 1, "replicas": [4]}\n'
        " ]}\n"
    )


def test_a_file_of_kafka_is_a_plan() -> None:
    text = (
        '{"version":1,"partitions":[{"topic":"foo","partition":1,"replicas":[3,2,1],'
        '"log_dirs":["any","any","any"]}]}'
    )
    assert read_plan(text) == Plan((PartitionMove("foo", 1, (), (3, 2, 1)),))


def test_replicas_that_come_and_go() -> None:
    assert (ORDERS.adding, ORDERS.removing, ORDERS.copied_bytes) == ((3,), (1,), 1000)
    grown = PartitionMove("orders", 0, (1,), (2, 1, 3), 1000)
    assert (grown.adding, grown.removing, grown.copied_bytes) == ((2, 3), (), 2000)
    assert Plan((ORDERS, grown)).copied_bytes == 3000


def test_the_reversed_plan_moves_back() -> None:
    plan = Plan((ORDERS,), 500, "abc")
    assert reversed_plan(plan) == replace(
        plan, moves=(PartitionMove("orders", 0, (2, 3), (1, 2), 1000),)
    )
    with pytest.raises(PlanError, match="orders-0: the plan does not have the current replicas"):
        reversed_plan(Plan((replace(ORDERS, replicas=()),)))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the plan is not JSON: Expecting value in line 1, column 1"),
        ("[" * 100_000, "the plan is not JSON that this program can read"),
        ('{"version": ' + "1" * 5000 + "}", "the plan is not JSON that this program can read"),
        ("[]", "the plan must be a JSON object, not []"),
        ("{}", 'the plan has "version": null; this program reads version 1'),
        ('{"version": 2}', 'the plan has "version": 2; this program reads version 1'),
        ('{"version": true}', 'the plan has "version": true; this program reads version 1'),
        ('{"version": 1}', '"partitions" must be a list, not null'),
        ('{"version": 1, "partitions": [7]}', "partition 1 of the plan must be a JSON object"),
        ('{"version": 1, "cluster_id": 7}', '"cluster_id" must be text, not 7'),
        (
            '{"version": 1, "throttle_bytes_per_s": 0}',
            '"throttle_bytes_per_s" is 0, and nothing would move; set at least 1, or remove it',
        ),
        (
            '{"version": 1, "throttle_bytes_per_s": NaN}',
            "the plan is not JSON that this program can read",
        ),
        (row(topic=None), 'partition 1 of the plan: "topic" must be text, not null'),
        (row(topic="a/b"), 'partition 1 of the plan: "topic" is not a name of a topic'),
        (row(partition=-1), 'orders: "partition" must be a whole number from 0 to 2147483647'),
        (row(partition=0.5), "not 0.5"),
        (row(partition=True), "not true"),
        (row(replicas=[]), 'orders-0: "replicas" is empty; name at least one worker'),
        (row(replicas=7), 'orders-0: "replicas" must be a list of worker ids, not 7'),
        (row(replicas=["1"]), 'a worker id in orders-0: "replicas" must be a whole number'),
        (row(replicas=[1, 2, 1]), 'orders-0: "replicas" has a worker more than once: [1, 2, 1]'),
        (row(replicas=list(range(129))), "has 129 workers; the maximum is 128"),
        (row(current=[1, 1]), 'orders-0: "current" has a worker more than once'),
        (row(size_bytes=-1), 'orders-0: "size_bytes" must be a whole number'),
        (row(log_dirs=["/disk1", "any"]), 'orders-0: "log_dirs" may only contain "any"'),
        (row(log_dirs="any"), 'orders-0: "log_dirs" may only contain "any"'),
    ],
)
def test_a_malformed_plan_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(PlanError) as refused:
        read_plan(text)
    assert complaint in str(refused.value)


def test_a_partition_is_in_a_plan_once() -> None:
    twice = json.loads(row())
    twice["partitions"] *= 2
    with pytest.raises(PlanError, match="orders-0 is in the plan more than once"):
        read_plan(json.dumps(twice))


def test_the_size_of_a_plan_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_MOVES", 0)
    with pytest.raises(PlanError, match='"partitions" has 1 rows; the maximum is 0: split'):
        read_plan(row())
    monkeypatch.setattr(plans, "MAX_FILE_CHARS", 20)
    with pytest.raises(PlanError, match="the plan has more than 20 characters; split it"):
        read_plan(row())


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    try:
        read_plan(text)
    except PlanError:
        pass


def test_the_topics_of_generate() -> None:
    text = '{"topics": [{"topic": "foo1"}, {"topic": "foo2"}, {"topic": "foo1"}], "version":1}'
    assert read_topics(text) == ["foo1", "foo2"]
    with pytest.raises(PlanError, match='"topics" must be a list'):
        read_topics("{}")
    with pytest.raises(PlanError, match='topic 1 of the list: "topic" is not a name of a topic'):
        read_topics('{"topics": [{"topic": ""}]}')
