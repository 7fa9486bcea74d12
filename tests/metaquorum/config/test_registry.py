"""The table of configs: values as Kafka parses them, and the order of the layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.config.definition import (
    ConfigKey,
    ConfigType,
    Only,
    Scope,
    ThrottledReplicaList,
    parse,
    to_text,
)
from metaquorum.config.registry import (
    INSTEAD,
    TOPIC_KEYS,
    WORKER_KEYS,
    key_named,
    parse_all,
    shown_keys,
)
from metaquorum.config.resolution import ConfigSource, WorkerLayers
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

ALL_KEYS = [*TOPIC_KEYS.values(), *WORKER_KEYS.values()]


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_default_is_a_value_that_would_be_accepted(key: ConfigKey) -> None:
    assert key.doc.endswith(".")
    text = to_text(key.default)
    if text is not None:
        assert parse(key, text) == key.default


def test_every_synonym_of_a_topic_config_is_a_worker_config_of_its_own() -> None:
    for key in TOPIC_KEYS.values():
        assert key.synonyms or isinstance(key.check, ThrottledReplicaList | Only)
        for name, _ in key.synonyms:
            assert WORKER_KEYS[name].scope is Scope.WORKER


def test_internal_configs_work_but_are_not_shown() -> None:
    shown = [key.name for scope in Scope for key in shown_keys(scope)]
    assert not [name for name in shown if name.startswith("internal")]
    assert parse_all(Scope.TOPIC, {"internal.segment.bytes": "100"})
    assert WorkerLayers().topic_configs().segment_bytes() == 1 << 30
    tiny = WorkerLayers({"internal.log.segment.bytes": "100"}).topic_configs()
    assert tiny.segment_bytes() == 100


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("segment.bytes", "2000000", 2_000_000),
        ("segment.bytes", " +2000000 ", 2_000_000),
        ("retention.ms", "-1", -1),
        ("retention.bytes", "9223372036854775807", 2**63 - 1),
        ("cleanup.policy", "delete", ("delete",)),
        ("cleanup.policy", " delete , delete ", ("delete", "delete")),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ],
)
def test_values_are_read_as_kafka_reads_them(name: str, text: str, value: object) -> None:
    assert parse(TOPIC_KEYS[name], text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("segment.bytes", "1_000_000_0", "Not a number of type INT"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "1e9", "Not a number of type INT"),
        ("segment.bytes", "٣", "Not a number of type INT"),
        ("segment.bytes", "", "Not a number of type INT"),
        ("segment.bytes", "9" * 5000, "Not a number of type INT"),
        ("segment.bytes", "13", "Value must be at least 1048576"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("cleanup.policy", "delete,shred", "String must be one of: compact, delete"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("message.timestamp.type", "createtime", "must be one of: CreateTime, LogAppendTime"),
        ("leader.replication.throttled.replicas", "0-1", "write 0:1 instead of 0-1"),
        ("leader.replication.throttled.replicas", "*,0:1", "must be the literal '.' or a list of"),
    ],
)
def test_other_values_are_refused_in_kafkas_words(name: str, text: str, message: str) -> None:
    with pytest.raises(KafkaError, match=message) as caught:
        parse(TOPIC_KEYS[name], text)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert name in caught.value.message
    assert len(caught.value.message) < 400


def test_booleans_and_doubles_are_javas() -> None:
    boolean = WORKER_KEYS["auto.create.topics.enable"]
    assert parse(boolean, " TRUE ") is True
    assert parse(boolean, "false") is False
    for text in ("yes", "1", ""):
        with pytest.raises(KafkaError, match="either true or false"):
            parse(boolean, text)
    double = ConfigKey("d", ConfigType.DOUBLE, 0.5, None, Scope.WORKER, False, "A double.")
    for text, value in (("1e3", 1000.0), ("0.5d", 0.5), (".25", 0.25), ("-3.", -3.0)):
        assert parse(double, text) == value
    for text in ("1_0", "nan ", "0x1p3", "one"):
        with pytest.raises(KafkaError, match="DOUBLE"):
            parse(double, text)


def test_an_unknown_name_is_refused_with_the_closest_one() -> None:
    with pytest.raises(KafkaError, match=r"retention\.sm; did you mean retention\.ms\?"):
        key_named(Scope.TOPIC, "retention.sm")
    with pytest.raises(KafkaError, match=r"Unknown worker config name: completely\.else$"):
        key_named(Scope.WORKER, "completely.else")


@given(st.sampled_from(ALL_KEYS), st.text(max_size=30))
def test_any_text_is_a_value_or_a_refusal(key: ConfigKey, text: str) -> None:
    try:
        value = parse(key, text)
    except KafkaError:
        return
    again = to_text(value)
    assert again is not None
    assert parse(key, again) == value


def test_the_nearest_layer_decides_and_all_are_told() -> None:
    layers = WorkerLayers(
        static={"log.retention.ms": "1", "log.retention.hours": "2"},
        dynamic={"log.retention.ms": "3"},
        dynamic_default={"log.retention.ms": "4"},
    )
    resolved = layers.topic_configs({"retention.ms": "5"}).resolve("retention.ms")
    assert resolved.value == 5
    assert resolved.source is ConfigSource.TOPIC
    assert [(each.name, each.text, each.source.value) for each in resolved.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "3", 2),
        ("log.retention.ms", "4", 3),
        ("log.retention.ms", "1", 4),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert layers.topic_configs()["retention.ms"] == 3
    assert layers.worker_configs()["log.retention.ms"] == 3


@pytest.mark.parametrize(
    ("static", "value"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "7"}, 7),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_that_is_set_wins(static: dict[str, str], value: int) -> None:
    assert WorkerLayers(static).topic_configs().integer("retention.ms") == value


def test_a_text_that_this_version_cannot_read_is_passed_over() -> None:
    configs = WorkerLayers().topic_configs({"cleanup.policy": "shred", "segment.bytes": "lots"})
    assert configs.list("cleanup.policy") == ("delete",)
    assert configs.integer("segment.bytes") == 1 << 30


@pytest.mark.parametrize(
    ("scope", "name", "good", "bad"),
    [
        (Scope.TOPIC, "remote.storage.enable", ["false"], "true"),
        (Scope.TOPIC, "remote.log.copy.disable", ["false"], "true"),
        (Scope.TOPIC, "remote.log.delete.on.disable", ["false"], "true"),
        (Scope.TOPIC, "local.retention.ms", ["-2"], "1000"),
        (Scope.TOPIC, "local.retention.bytes", ["-2"], "-1"),
        (Scope.TOPIC, "preallocate", ["false", "true"], "maybe"),
        (Scope.WORKER, "log.preallocate", ["false", "true"], "maybe"),
        (Scope.WORKER, "log.local.retention.ms", ["-2"], "5"),
        (Scope.WORKER, "background.threads", ["10", "1"], "0"),
        (Scope.WORKER, "remote.log.storage.system.enable", ["false"], "true"),
        (Scope.WORKER, "controlled.shutdown.enable", ["true"], "false"),
        (Scope.WORKER, "metric.reporters", [""], "com.example.Reporter"),
    ],
)
def test_configs_that_ask_for_nothing_are_accepted(
    scope: Scope, name: str, good: list[str], bad: str
) -> None:
    for text in good:
        assert parse_all(scope, {name: text})
    with pytest.raises(KafkaError, match=name.replace(".", r"\.")):
        parse_all(scope, {name: bad})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.io.threads", "run more workers"),
        ("security.inter.broker.protocol", "inter.broker.listener.name"),
        ("zookeeper.connect", "--quorum"),
        ("retention.mss", "did you mean"),
    ],
)
def test_an_unknown_config_of_kafka_says_what_to_use_instead(name: str, hint: str) -> None:
    with pytest.raises(KafkaError, match=hint):
        key_named(Scope.WORKER, name)
    assert not INSTEAD.keys() & WORKER_KEYS.keys()
