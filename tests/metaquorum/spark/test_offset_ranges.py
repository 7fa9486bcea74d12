import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.offset_ranges import MAX_OFFSET, OffsetRange, ReadPlan, TopicFacts
from metaquorum.wire.primitives.types import ZERO_UUID, uuid_to_text

TOPIC_ID = bytes(range(16))
TOPIC_NAMES = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(
    lambda name: name not in (".", "..")
)


@st.composite
def plans(draw: st.DrawFn) -> ReadPlan:
    topics = {
        name: TopicFacts(draw(st.binary(min_size=16, max_size=16)), draw(st.none() | st.booleans()))
        for name in draw(st.lists(TOPIC_NAMES, max_size=3, unique=True))
    }
    ranges: list[OffsetRange] = []
    for name in sorted(topics):
        for partition in sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=3))):
            bounds = sorted(draw(st.sets(st.integers(0, MAX_OFFSET), min_size=2, max_size=5)))
            epoch, size = draw(st.integers(-1, 2**31 - 1)), draw(st.integers(-1, 2**63))
            ranges += [
                OffsetRange(name, partition, start, end, topics[name].topic_id, epoch, size)
                for start, end in pairwise(bounds)
            ]
    return ReadPlan(
        draw(st.none() | st.text()),
        draw(st.booleans()),
        tuple(ranges),
        topics,
        draw(st.integers(0, 2**62)),
    )


@given(plans())
def test_a_plan_comes_back_from_json_as_it_was(plan: ReadPlan) -> None:
    assert ReadPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def plan() -> ReadPlan:
    ranges = (
        OffsetRange("logs", 0, 10, 20, TOPIC_ID, 3, 1000),
        OffsetRange("logs", 0, 20, 30, TOPIC_ID, 3, 1000),
        OffsetRange("logs", 2, 0, 5, TOPIC_ID),
        OffsetRange("old", 0, 7, 7),
    )
    topics = {"logs": TopicFacts(TOPIC_ID, True), "old": TopicFacts(ZERO_UUID, None)}
    return ReadPlan("cluster", True, ranges, topics, 1_700_000_000_000)


def test_ids_of_topics_are_text() -> None:
    data = plan().to_json()
    assert data["topics"]["logs"]["topic_id"] == uuid_to_text(TOPIC_ID)
    assert data["version"] == 1


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(plan().to_json())
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "parquet", "not a metaquorum read plan"),
        (("version",), 2, "version 2; this release reads version 1"),
        (("version",), True, "'version' is not a whole number"),
        (("cluster_id",), 5, "'cluster_id' is not a string"),
        (("read_committed",), 1, "'read_committed' is not true or false"),
        (("made_at_ms",), ..., "has no 'made_at_ms'"),
        (("made_at_ms",), -1, "before 1970"),
        (("password",), "x", "unknown field 'password'"),
        (("topics",), [], "'topics' is not an object"),
        (("topics", "logs"), 1, "topic 'logs' is not a JSON object"),
        (("topics", "logs", "topic_id"), "short", "topic 'logs': 'short' is not an id"),
        (("topics", "logs", "is_compacted"), "yes", "'is_compacted' is not true or false"),
        (("topics", "old"), ..., "does not have the topic 'old'"),
        (("ranges",), {}, "'ranges' is not an array"),
        (("ranges", 0), [], "range 0 is not a JSON object"),
        (("ranges", 0, "topic"), "../secret", "does not have the topic '../secret'"),
        (("ranges", 0, "start"), 10.0, "range 0: 'start' is not a whole number"),
        (("ranges", 0, "start"), -1, "-1 to 20 is not an offset range"),
        (("ranges", 0, "start"), 21, "21 to 20 is not an offset range"),
        (("ranges", 3, "end"), MAX_OFFSET + 1, "is not an offset range"),
        (("ranges", 0, "partition"), -1, "no partition -1"),
        (("ranges", 0, "leader_epoch"), -2, "below -1"),
        (("ranges", 0, "bytes_estimate"), ..., "range 0 has no 'bytes_estimate'"),
        (("ranges", 0, "key"), 1, "range 0 has an unknown field 'key'"),
        (("ranges", 0, "end"), 19, "does not begin where logs-0-"),
        (("ranges", 1, "start"), 19, "does not begin where"),
        (("ranges", 2, "partition"), 0, "does not begin where"),
        (("ranges", 0, "partition"), 1, "ranges are not in order"),
        (("ranges", 3, "topic"), "logs", "ranges are not in order"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(path: tuple[Any, ...], value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        ReadPlan.from_json(changed(path, value))


@pytest.mark.parametrize("data", [None, [], "plan", {}, {"format": None}])
def test_other_json_is_no_plan(data: Any) -> None:
    with pytest.raises(ValueError):
        ReadPlan.from_json(data)


def test_a_range_that_is_there_twice_is_refused() -> None:
    data = plan().to_json()
    data["ranges"].append(data["ranges"][-1])
    with pytest.raises(ValueError, match="twice"):
        ReadPlan.from_json(data)


def test_names_of_files_are_made_of_names_of_topics_only() -> None:
    """A plan comes from a file: its topics become parts of paths."""
    for name in ("..", ".", "a/b", "", "a" * 250, "tschüß", "a\n"):
        with pytest.raises(ValueError, match="not a valid topic name"):
            OffsetRange(name, 0, 0, 1)
    assert OffsetRange("a.b_c-D9", 3, 5, 12).name == f"a.b_c-D9-3-{5:020}-{12:020}"


def test_the_id_of_a_range_is_that_of_its_topic() -> None:
    with pytest.raises(ValueError, match="the id is not that of the topic"):
        ReadPlan(None, False, (OffsetRange("t", 0, 0, 1),), {"t": TopicFacts(TOPIC_ID, None)}, 0)
