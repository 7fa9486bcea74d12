"""Lists of throttled replicas: accepted and refused as by Kafka's ThrottledReplicaListValidator."""

import pytest

from metaquorum.config.throttled_replicas import ThrottledReplicas, list_complaint

NAME = "leader.replication.throttled.replicas"


def items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text else []


@pytest.mark.parametrize(
    "text",
    ["", "*", " * ", "0:1", "0:1,5:101", " 0:1 , 5:101 ", "0:1,", ",0:1", "*,", "9" * 12 + ":1"],
)
def test_lists_that_kafka_accepts_are_accepted(text: str) -> None:
    assert list_complaint(NAME, items(text)) is None


@pytest.mark.parametrize(
    "text", ["0", "0:", ":1", "0:1:2", "a:1", "0:-1", "-1:0", "*,0:1", "**", "0:1;1:1", "٠:1"]
)
def test_other_lists_are_refused_with_the_right_form(text: str) -> None:
    assert list_complaint(NAME, items(text)) == (
        f"{NAME} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


def test_the_form_of_the_seed_is_refused_with_the_pair_to_write_instead() -> None:
    complaint = list_complaint(NAME, items("0-1,3-101"))
    assert complaint is not None
    assert complaint.endswith("; write 0:1 instead of 0-1")


def test_a_list_has_its_pairs_and_no_other() -> None:
    throttled = ThrottledReplicas.of(items("0:1, 5:101,,0:1"))
    assert throttled is not None
    asked = [(0, 1), (5, 101), (5, 1), (0, 101), (1, 1)]
    assert [throttled.has(*pair) for pair in asked] == [True, True, False, False, False]


def test_the_wildcard_has_every_replica() -> None:
    throttled = ThrottledReplicas.of(items(" *"))
    assert throttled is not None
    assert throttled.has(0, 1)
    assert throttled.has(1000, 101)


@pytest.mark.parametrize("text", ["", ",", "0-1", "0:1,x", "9" * 5000 + ":1"])
def test_empty_malformed_and_absurd_lists_throttle_nothing(text: str) -> None:
    assert ThrottledReplicas.of(items(text)) is None
