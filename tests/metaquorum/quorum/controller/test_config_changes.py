"""Config changes compared with a dictionary as the model; addition of partitions."""

from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.config.definition import Scope
from metaquorum.config.registry import parse_all
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import ConfigRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.config_changes import (
    ConfigChange,
    ConfigOp,
    ResourceChange,
    change_configs,
)
from metaquorum.quorum.controller.topics import (
    MAX_PARTITIONS_PER_TOPIC,
    NewPartitions,
    NewTopic,
    create_partitions,
)
from metaquorum.wire.primitives.errors import ErrorCode as E
from metaquorum.wire.primitives.errors import KafkaError
from tests.metaquorum.quorum.raft.test_alone import Node
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk
from tests.metaquorum.quorum.storage.histories import CLUSTER, history

# Topic "a" has two partitions of one replica, and retention.ms=5.
IMAGE, _ = replay(
    MetadataImage.empty(CLUSTER),
    history([("register", 1, 1), ("register", 2, 1), ("create", "a", 2)]),
)
SET, DELETE, APPEND, SUBTRACT = ConfigOp


def topic(*changes: ConfigChange, name: str = "a", replace: bool = False) -> ResourceChange:
    return ResourceChange(Scope.TOPIC, name, changes, replace)


def worker(*changes: ConfigChange) -> ResourceChange:
    return ResourceChange(Scope.WORKER, "1", changes)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("max.connections", "4", "5"),
        ("listener.name.outside.max.connections", "0", "5"),
        ("max.connections.per.ip", "0", "1"),
        ("log.cleaner.threads", "0", "1"),
        ("log.cleaner.threads", "65", "64"),
        ("log.cleaner.io.max.bytes.per.second", "0", "1024"),
        ("log.cleaner.io.buffer.size", "2147483647", "0"),
        ("log.cleaner.backoff.ms", str(2**63 - 1), "0"),
        ("log.cleaner.max.compaction.lag.ms", "1", "1000"),
        ("log.index.size.max.bytes", "4", "4096"),
        ("log.roll.ms", "1", "1000"),
        ("log.segment.delete.delay.ms", str(2**63 - 1), "0"),
        ("internal.log.segment.bytes", "14", "1048576"),
        ("message.max.bytes", "0", "1024"),
        ("num.recovery.threads.per.data.dir", "2147483647", "1000"),
        ("producer.id.expiration.ms", "1", "120000"),
    ],
)
@pytest.mark.parametrize("resource", ["", "1"])
def test_running_workers_stay_usable(resource: str, name: str, bad: str, good: str) -> None:
    def change(value: str) -> KafkaError | None:
        spec = ResourceChange(Scope.WORKER, resource, [ConfigChange(name, SET, value)])
        return change_configs(IMAGE, spec).answer

    assert change(good) is None
    error = change(bad)
    assert error is not None
    assert error.code is E.INVALID_REQUEST
    assert name.removeprefix("listener.name.outside.") in str(error.message)
    # The node's own options accept it: a restart with others corrects it.
    if name != "max.connections.per.ip":
        parse_all(Scope.WORKER, {name: bad})


def test_a_value_from_before_its_bound_stays_and_can_be_sent_again() -> None:
    old, _ = replay(IMAGE, [ConfigRecord(int(Scope.WORKER), "", "max.connections", "1")])
    both = [ConfigChange("max.connections", SET, "1"), ConfigChange("log.roll.ms", SET, "5000")]
    decision = change_configs(old, ResourceChange(Scope.WORKER, "", both, replace=True))
    assert decision.answer is None
    assert len(decision.all_records()) == 1


def test_no_connections_of_an_address_need_overrides_as_in_kafka() -> None:
    none, some = (
        ConfigChange("max.connections.per.ip", SET, "0"),
        ConfigChange("max.connections.per.ip.overrides", SET, "10.0.0.1:5"),
    )
    without = ConfigChange("max.connections.per.ip.overrides", DELETE)
    closed = ConfigChange("max.connections.per.ip.overrides", SET, "10.0.0.1:0")
    image = IMAGE
    for changes, is_allowed in [
        ([none], False),
        ([none, closed], False),
        ([some, none], True),
        ([closed], False),
        ([without], False),
    ]:
        decision = change_configs(image, ResourceChange(Scope.WORKER, "", changes))
        assert (decision.answer is None) == is_allowed, (changes, decision.answer)
        if is_allowed:
            image, _ = replay(image, decision.all_records())
    # One worker may rely on the overrides of all.
    assert change_configs(image, ResourceChange(Scope.WORKER, "1", [none])).answer is None
    assert change_configs(IMAGE, ResourceChange(Scope.WORKER, "1", [none])).answer is not None
    with pytest.raises(KafkaError, match=r"only if max\.connections\.per\.ip\.overrides"):
        parse_all(Scope.WORKER, {"max.connections.per.ip": "0"})


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        (topic(ConfigChange("retention.ms", SET, "x")), E.INVALID_CONFIG, "type LONG"),
        (topic(ConfigChange("no.such", SET, "1")), E.INVALID_CONFIG, "Unknown topic config name"),
        (topic(ConfigChange("retention.ms", SET)), E.INVALID_REQUEST, "Null value not supported"),
        (topic(ConfigChange("retention.ms", APPEND, "1")), E.INVALID_CONFIG, "Can't APPEND to key"),
        (topic(ConfigChange("cleanup.policy", APPEND, "x")), E.INVALID_CONFIG, "must be one of"),
        (topic(ConfigChange("retention.ms", 9, "1")), E.INVALID_REQUEST, "Unknown operation 9"),
        (
            topic(ConfigChange("retention.ms", SET, "1"), ConfigChange("retention.ms", DELETE)),
            E.INVALID_REQUEST,
            "duplicate config keys",
        ),
        (
            topic(ConfigChange("retention.ms", SET, "1"), ConfigChange("segment.ms", SET, "0")),
            E.INVALID_CONFIG,
            "at least 1",
        ),
        (topic(name="b"), E.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'b' does not exist."),
        (topic(name="!"), E.INVALID_TOPIC_EXCEPTION, "other than ASCII"),
        (topic(name=""), E.INVALID_REQUEST, "Default topic resources are not allowed."),
        (
            worker(ConfigChange("node.id", SET, "2"), ConfigChange("num.partitions", SET, "2")),
            E.INVALID_REQUEST,
            "Cannot update these configs dynamically: [node.id, num.partitions]",
        ),
        (worker(ConfigChange("log.retention.ms", SET, "x")), E.INVALID_REQUEST, "type LONG"),
        (worker(ConfigChange("log.no.such", SET, "1")), E.INVALID_CONFIG, "Unknown worker config"),
    ],
)
def test_a_change_is_refused_whole_and_in_kafkas_words(
    spec: ResourceChange, code: E, message: str
) -> None:
    decision = change_configs(IMAGE, spec)
    assert decision.answer is not None
    assert decision.answer.code is code
    assert message in decision.answer.message
    assert list(decision.records) == []


def taken(image: MetadataImage, spec: ResourceChange) -> MetadataImage:
    decision = change_configs(image, spec)
    assert decision.answer is None
    return replay(image, decision.records)[0]


def test_what_a_resource_has_not_can_be_deleted_whatever_it_is() -> None:
    for name in ("segment.ms", "no.such.config"):
        assert list(change_configs(IMAGE, topic(ConfigChange(name, DELETE))).records) == []
    assert list(change_configs(IMAGE, worker(ConfigChange("node.id", DELETE))).records) == []


def test_only_what_differs_is_written() -> None:
    same = ConfigChange("retention.ms", SET, "5")
    assert list(change_configs(IMAGE, topic(same)).records) == []
    more = topic(same, ConfigChange("segment.ms", SET, "6"))
    assert len(list(change_configs(IMAGE, more).records)) == 1


def test_a_list_without_a_value_of_its_own_begins_as_the_default() -> None:
    image = taken(IMAGE, topic(ConfigChange("cleanup.policy", APPEND, "delete")))
    assert image.topic_configs("a")["cleanup.policy"] == "delete"
    image = taken(image, topic(ConfigChange("cleanup.policy", SUBTRACT, "x, delete")))
    assert image.topic_configs("a")["cleanup.policy"] == ""


NUMBERS = st.sampled_from(["retention.ms", "segment.ms", "flush.ms", "max.message.bytes"])
VALUES = st.one_of(st.none(), st.integers(1, 9).map(str))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.dictionaries(NUMBERS, VALUES)), max_size=8))
def test_changes_are_those_of_a_dictionary(
    specs: list[tuple[bool, dict[str, str | None]]],
) -> None:
    image, model = IMAGE, {"retention.ms": "5"}
    for replace, values in specs:
        wanted = {name: text for name, text in values.items() if text is not None}
        if replace:
            changes = [ConfigChange(name, SET, text) for name, text in wanted.items()]
            model = wanted
        else:
            changes = [
                ConfigChange(name, DELETE if text is None else SET, text)
                for name, text in values.items()
            ]
            model = {n: t for n, t in model.items() if n not in values} | wanted
        image = taken(image, topic(*changes, replace=replace))
        assert image.topic_configs("a") == model


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        (NewPartitions("b", 3), E.UNKNOWN_TOPIC_OR_PARTITION, "does not host"),
        (NewPartitions("a", 2), E.INVALID_PARTITIONS, "already has 2 partition(s)"),
        (NewPartitions("a", -1), E.INVALID_PARTITIONS, "-1 would not be an increase"),
        (NewPartitions("a", MAX_PARTITIONS_PER_TOPIC + 1), E.INVALID_PARTITIONS, "at most"),
        (NewPartitions("a", 4, [(1,)]), E.INVALID_REPLICA_ASSIGNMENT, "add 2 additional"),
        (NewPartitions("a", 3, [(9,)]), E.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        (NewPartitions("a", 3, [()]), E.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        (NewPartitions("a", 3, [(1, 2)]), E.INVALID_REPLICA_ASSIGNMENT, "not consistent"),
    ],
)
def test_partitions_that_cannot_be_added_are_refused_in_kafkas_words(
    spec: NewPartitions, code: E, message: str
) -> None:
    decision = create_partitions(IMAGE, spec, Random(1))
    assert decision.answer is not None
    assert decision.answer.code is code
    assert message in decision.answer.message
    assert list(decision.records) == []


def test_added_partitions_follow_those_there_are() -> None:
    before = IMAGE.topics["a"].partitions
    decision = create_partitions(IMAGE, NewPartitions("a", 4, [(2,), (1,)]), Random(1))
    image, _ = replay(IMAGE, decision.records)
    after = image.topics["a"].partitions
    assert after[:2] == before
    assert [(p.replicas, p.isr, p.leader, p.leader_epoch) for p in after[2:]] == [
        ((2,), (2,), 2, 0),
        ((1,), (1,), 1, 0),
    ]
    assert image.partition_count == IMAGE.partition_count + 2
    decision = create_partitions(IMAGE, NewPartitions("a", 6), Random(1))
    image, _ = replay(IMAGE, decision.records)
    assert sorted(p.leader for p in image.topics["a"].partitions[2:]) == [1, 1, 2, 2]


def test_a_change_is_visible_when_it_is_answered_and_validating_makes_none() -> None:
    async def work(node: Node) -> None:
        controller_client = node.controller_client
        await controller_client.create_topics([NewTopic("a")])
        good = topic(ConfigChange("segment.ms", SET, "7"))
        bad = topic(ConfigChange("segment.ms", SET, "7"), name="b")

        def codes(answers: list[KafkaError | None]) -> list[E | None]:
            return [None if answer is None else answer.code for answer in answers]

        for validate_only in (True, False):
            answers = await controller_client.change_configs(
                [good, bad], validate_only=validate_only
            )
            assert codes(answers) == [None, E.UNKNOWN_TOPIC_OR_PARTITION]
            more = [NewPartitions("a", 3), NewPartitions("b", 3)]
            answers = await controller_client.create_partitions(more, validate_only=validate_only)
            assert codes(answers) == [None, E.UNKNOWN_TOPIC_OR_PARTITION]
            image = node.loader.visible
            assert image.topic_configs("a") == ({} if validate_only else {"segment.ms": "7"})
            assert len(image.topics["a"].partitions) == (1 if validate_only else 3)

    trio.run(Node(CrashDisk()).run, work)
