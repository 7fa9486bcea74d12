import logging
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.security import Login, Security, Tls
from metaquorum.spark.given_options import KNOWN_OPTIONS, REFUSED_OPTIONS, STREAMING_OPTIONS
from metaquorum.spark.jaas import parse_jaas
from metaquorum.spark.options import (
    COLUMNS,
    DEFAULT_CLIENT_ID,
    DEFAULT_FETCH_BYTES,
    MAX_FETCH_BYTES,
    Assign,
    Connecting,
    FetchOptions,
    OffsetsByPartition,
    OptionError,
    Position,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    Timestamp,
    TimestampsByPartition,
    parse_fetch_options,
)
from tests.nodes import ROOT

BOOTSTRAP = {"kafka.bootstrap.servers": "localhost:9092"}
LEAST = {**BOOTSTRAP, "subscribe": "t"}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "hunter2-S3cret"


def parse(options: Mapping[str, str]) -> ReadOptions:
    return ReadOptions.parse({**LEAST, **options})


def where(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)


def test_the_least_that_can_be_said_has_the_defaults_of_the_connector() -> None:
    assert parse({}) == ReadOptions(
        fetch=FetchOptions(
            connecting=Connecting("localhost:9092", Security(), DEFAULT_CLIENT_ID, "", 60.0),
            read_committed=False,
            fail_on_data_loss=True,
            include_headers=False,
            columns=None,
            fetch_max_bytes=DEFAULT_FETCH_BYTES,
        ),
        topics=Subscribe(("t",)),
        starting=Position.EARLIEST,
        ending=Position.LATEST,
    )


def test_names_are_compared_without_case_and_values_with() -> None:
    options = {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "Topic", "FAILONDATALOSS": "False"}
    read = ReadOptions.parse(options)
    assert read.topics == Subscribe(("Topic",))
    assert not read.fetch.fail_on_data_loss


# Topics


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": " a, b,,a "}, Subscribe(("a", "b"))),
        ({"subscribePattern": " logs-.* "}, SubscribePattern("logs-.*")),
        ({"subscribePattern": r"(?<day>\d+)"}, SubscribePattern(r"(?P<day>\d+)")),
        ({"assign": '{"b":[1,0],"a":[2]}'}, Assign((where("a", 2), where("b", 0), where("b", 1)))),
        ({"assign": '{"a":[2,2]}'}, Assign((where("a", 2),))),
    ],
)
def test_topics(options: Mapping[str, str], topics: object) -> None:
    assert ReadOptions.parse({**BOOTSTRAP, **options}).topics == topics


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of the options assign, subscribe, subscribePattern is required"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "not assign and subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a/b"}, "names the topic 'a/b'"),
        ({"subscribePattern": " "}, "subscribePattern is empty"),
        ({"subscribePattern": "("}, "regular expression of Python"),
        ({"subscribePattern": r"\p{Alpha}+"}, "only Java has"),
        ({"subscribePattern": "[a-z&&[^b]]"}, "only Java has"),
        ({"subscribePattern": "[[ab]]"}, "Possible nested set"),
        ({"assign": "t"}, "not of the form"),
        ({"assign": '["t"]'}, "not of the form"),
        ({"assign": '{"t":0}'}, "not of the form"),
        ({"assign": '{"t":["0"]}'}, "not of the form"),
        ({"assign": '{"t":[true]}'}, "not of the form"),
        ({"assign": '{"t":[-1]}'}, "not of the form"),
        ({"assign": '{"t":[0],"t":[1]}'}, "a name occurs twice"),
        ({"assign": "{}"}, "names no partition"),
        ({"assign": '{"..":[1]}'}, "names the topic '..'"),
    ],
)
def test_topics_that_are_refused(options: Mapping[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ReadOptions.parse({**BOOTSTRAP, **options})


def test_a_quoted_backslash_is_no_construct_of_java() -> None:
    assert parse_pattern(r"a\\p") == r"a\\p"
    with pytest.raises(OptionError):
        parse_pattern(r"a\\\p{Lu}")


def parse_pattern(text: str) -> str:
    topics = ReadOptions.parse({**BOOTSTRAP, "subscribePattern": text}).topics
    assert isinstance(topics, SubscribePattern)
    return topics.pattern


# Offsets


@pytest.mark.parametrize(
    ("options", "starting", "ending"),
    [
        (
            {"startingOffsets": "Earliest", "endingOffsets": " LATEST "},
            Position.EARLIEST,
            Position.LATEST,
        ),
        (
            {"startingOffsets": '{"t":{"0":23,"1":-2}}', "endingOffsets": '{"t":{"0":-1,"1":7}}'},
            OffsetsByPartition({where("t", 0): 23, where("t", 1): -2}),
            OffsetsByPartition({where("t", 0): -1, where("t", 1): 7}),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":1000}}', "endingTimestamp": "2000"},
            TimestampsByPartition({where("t", 0): 1000}),
            Timestamp(2000),
        ),
        (
            {"startingTimestamp": "1000", "endingOffsetsByTimestamp": '{"t":{"0":2000}}'},
            Timestamp(1000),
            TimestampsByPartition({where("t", 0): 2000}),
        ),
    ],
)
def test_offsets(options: Mapping[str, str], starting: object, ending: object) -> None:
    read = parse(options)
    assert (read.starting, read.ending) == (starting, ending)


def test_a_timestamp_goes_before_those_by_partition_and_these_before_offsets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    by_partition = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t":{"0":1000}}',
        "endingOffsets": "latest",
        "endingOffsetsByTimestamp": '{"t":{"0":2000}}',
    }
    read = parse(by_partition)
    assert read.starting == TimestampsByPartition({where("t", 0): 1000})
    assert read.ending == TimestampsByPartition({where("t", 0): 2000})
    read = parse({**by_partition, "startingTimestamp": "5", "endingTimestamp": "6"})
    assert (read.starting, read.ending) == (Timestamp(5), Timestamp(6))
    assert "option startingOffsets has no effect: startingTimestamp is given" in caplog.messages


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets can't be latest in a batch read"),
        ({"endingOffsets": "earliest"}, "endingOffsets can't be earliest in a batch read"),
        ({"startingOffsets": '{"t":{"3":-1}}'}, r"startingOffsets of t-3 can't be latest"),
        ({"endingOffsets": '{"t":{"3":-2}}'}, r"endingOffsets of t-3 can't be earliest"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "t-0 the number -3"),
        ({"startingOffsets": '{"t":{"0":9223372036854775808}}'}, "out of range"),
        ({"startingOffsets": "soonest"}, "startingOffsets is not of the form"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "not of the form"),
        ({"startingOffsets": '{"t":{"0":NaN}}'}, "not of the form"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "not of the form"),
        ({"startingOffsets": '{"t":{"-1":1}}'}, "not of the form"),
        ({"startingOffsets": '{"t":{"1":1,"01":2}}'}, "names t-1 twice"),
        ({"startingOffsets": '{"t":{"1":1,"1":2}}'}, "a name occurs twice"),
        ({"startingOffsets": '{"t":' * 100_000}, "not of the form"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is not a number"),
        ({"endingTimestamp": "-1"}, "endingTimestamp is not a number"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "t-0 the number -1"),
        ({"startingOffsetsByTimestampStrategy": "newest"}, "must be one of error, latest"),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "starting offset 5 of t-0 is above its ending offset 4",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":5,"1":9}}'},
            "t-1 are in one of them only",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":5}}',
                "endingOffsetsByTimestamp": '{"t":{"0":4}}',
            },
            "starting timestamp 5 of t-0 is above",
        ),
    ],
)
def test_offsets_that_are_refused(options: Mapping[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse(options)


def test_the_strategy_for_timestamps_without_records() -> None:
    assert not parse({}).latest_if_no_match
    assert not parse({"startingOffsetsByTimestampStrategy": "ERROR"}).latest_if_no_match
    assert parse({"startingOffsetsByTimestampStrategy": "Latest"}).latest_if_no_match


# How it is read


def test_splits() -> None:
    read = parse(
        {"minPartitions": "7", "maxRecordsPerPartition": "100", "maxBytesPerPartition": "1000"}
    )
    assert read.min_partitions == 7
    assert read.max_records_per_partition == 100
    assert read.max_bytes_per_partition == 1000


@pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition", "fetchMaxBytes"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "", "ten", "1_0", "9" * 5000])
def test_numbers_are_positive_and_whole(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} is"):
        parse({name: value})


def test_columns() -> None:
    assert parse({"columns": "value, offset"}).fetch.columns == ("value", "offset")
    both = {"columns": "headers,key", "includeHeaders": "TRUE"}
    assert parse(both).fetch.columns == ("headers", "key")
    assert parse({"columns": ",".join(COLUMNS)}).fetch.columns == COLUMNS


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("", "is empty"),
        ("Value", "names 'Value'; the columns are key, value, topic"),
        ("value,value", "names value twice"),
        ("headers", "set the option includeHeaders"),
    ],
)
def test_columns_that_are_refused(columns: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse({"columns": columns})


def test_the_least_of_the_limits_of_a_fetch_is_the_limit() -> None:
    given = {"kafka.fetch.max.bytes": "3000", "kafka.max.partition.fetch.bytes": "2000"}
    assert parse(given).fetch.fetch_max_bytes == 2000
    assert parse({**given, "fetchMaxBytes": "1000"}).fetch.fetch_max_bytes == 1000
    assert parse({"kafka.fetch.max.bytes": str(1 << 40)}).fetch.fetch_max_bytes == MAX_FETCH_BYTES
    with pytest.raises(OptionError, match=f"positive whole number up to {MAX_FETCH_BYTES}"):
        parse({"fetchMaxBytes": str(MAX_FETCH_BYTES + 1)})


def test_how_the_cluster_is_reached() -> None:
    options = {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.client.id": "nightly",
        "kafka.client.rack": "r1",
        "kafka.isolation.level": "Read_Committed",
        "kafka.request.timeout.ms": "1500",
    }
    fetch = parse(options).fetch
    assert fetch.connecting == Connecting("a:1,b:2", Security(), "nightly", "r1", 1.5)
    assert fetch.read_committed
    options["kafka.default.api.timeout.ms"] = "2500"
    assert parse(options).fetch.connecting.timeout_s == 2.5
    options["kafkaConsumer.pollTimeoutMs"] = "120000"
    assert parse(options).fetch.connecting.timeout_s == 120.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.bootstrap.servers": "a:b"}, "kafka.bootstrap.servers: 'a:b' is not HOST:PORT"),
        ({"kafka.isolation.level": "serializable"}, "one of read_uncommitted, read_committed"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss is 'yes'"),
        ({"includeHeaders": "1"}, "option includeHeaders is '1'"),
        (
            {"kafka.request.timeout.ms": "2", "kafka.default.api.timeout.ms": "1"},
            "must not be less than",
        ),
        ({"kafka.auto.offset.reset": "latest"}, "set startingOffsets instead"),
        ({"kafka.KEY.deserializer": "x"}, "keys are read as bytes"),
        ({"kafka.value.deserializer": "x"}, "values are read as bytes"),
        ({"kafka.enable.auto.commit": "true"}, "in no consumer group"),
        ({"kafka.interceptor.classes": "x"}, "interceptors are Java classes"),
        ({"kafka.group.id": "g"}, "in no consumer group"),
        ({"groupIdPrefix": "g"}, "in no consumer group"),
        ({"fetchOffset.numRetries": "3"}, "kafka.default.api.timeout.ms"),
        ({"kafka.max.poll.records": "3"}, "is not known to this client and would have no effect"),
        ({"kafka.sasl.mechanisms": "PLAIN"}, "set it to SASL_SSL or SASL_PLAINTEXT"),
        (
            {"startingOffset": "earliest"},
            "startingOffset does not exist: .* is startingOffsets meant",
        ),
        ({"path": "t"}, "call load.. without a path"),
    ],
)
def test_options_that_are_refused(options: Mapping[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse(options)


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "spark-options.md").read_text()
    named = set(re.findall(r"`([\w.]+)`", text))
    passwords = {"kafka.ssl.truststore.password", "kafka.ssl.keystore.password"}  # refused
    assert {*KNOWN_OPTIONS, *STREAMING_OPTIONS} - passwords <= named
    kafkas = {name for name in named if name.startswith("kafka")}
    assert kafkas <= {*KNOWN_OPTIONS, *REFUSED_OPTIONS}


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="given twice"):
        ReadOptions.parse({**LEAST, "Subscribe": "u"})


def test_the_bootstrap_servers_are_needed() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is required"):
        ReadOptions.parse({"subscribe": "t"})


def test_options_of_streaming_queries_are_judged_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        parse({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1m"})
    assert len(caplog.messages) == 3
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(6\) is above"):
        parse({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"})
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger is not a number"):
        parse({"maxOffsetsPerTrigger": "many"})


def test_for_a_plan_that_is_there_topics_and_offsets_are_refused() -> None:
    given = {**BOOTSTRAP, "failOnDataLoss": "false", "columns": "key"}
    assert parse_fetch_options(given) == parse({**given}).fetch
    with pytest.raises(OptionError, match="option subscribe is not accepted here; what is read is"):
        parse_fetch_options(LEAST)


# Security

SASL = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "SCRAM-SHA-512"}
TLS = {"kafka.security.protocol": "ssl"}


def security(options: Mapping[str, str]) -> Security:
    return parse(options).fetch.connecting.security


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kafka.security.protocol": "PLAINTEXT"}, Security()),
        (TLS, Security(Tls())),
        (
            {
                **SASL,
                "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="u" password="p";',
            },
            Security(None, Login("SCRAM-SHA-512", "u", "p")),
        ),
        (
            {**SASL, "kafka.sasl.username": "u", "kafka.sasl.password": "p"},
            Security(None, Login("SCRAM-SHA-512", "u", "p")),
        ),
        (
            {
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f"{PLAIN_MODULE} required username=u password='';",
                "kafka.ssl.ca.location": "ca.pem",
                "kafka.ssl.endpoint.identification.algorithm": "",
            },
            Security(Tls("ca.pem", verify_hostname=False), Login("PLAIN", "u", "")),
        ),
        (
            {
                **TLS,
                "kafka.ssl.truststore.location": "trust.pem",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.keystore.location": "key.pem",
                "kafka.ssl.keystore.type": "pem",
            },
            Security(Tls("trust.pem", "key.pem")),
        ),
        (
            {
                **TLS,
                "kafka.ssl.certificate.location": "c.pem",
                "kafka.ssl.key.location": "k.pem",
                "kafka.ssl.endpoint.identification.algorithm": "HTTPS",
            },
            Security(Tls(None, "c.pem", "k.pem")),
        ),
    ],
)
def test_security(options: Mapping[str, str], expected: Security) -> None:
    assert security(options) == expected


JAAS = f'{SCRAM_MODULE} required username="u" password="{SECRET}"'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.security.protocol": "SASL"}, "one of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ({"kafka.sasl.password": SECRET}, "kafka.security.protocol is PLAINTEXT: set it to SASL"),
        ({**TLS, "kafka.sasl.username": "u"}, "set it to SASL_SSL"),
        ({**SASL, "kafka.sasl.jaas.config": JAAS + ";", "kafka.ssl.ca.location": "x"}, "to SSL"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is required with SASL_SSL"),
        ({**SASL, "kafka.sasl.mechanism": "GSSAPI"}, "supported are PLAIN, SCRAM-SHA-256"),
        (SASL, "SASL_PLAINTEXT needs a user"),
        ({**SASL, "kafka.sasl.username": "u"}, "needs a user"),
        ({**SASL, "kafka.sasl.username": "", "kafka.sasl.password": SECRET}, "needs a user"),
        (
            {**SASL, "kafka.sasl.jaas.config": JAAS + ";", "kafka.sasl.password": SECRET},
            "not both",
        ),
        ({**SASL, "kafka.sasl.jaas.config": JAAS}, "does not end with a semicolon"),
        ({**SASL, "kafka.sasl.jaas.config": JAAS + "; x required;"}, "more than one login module"),
        ({**SASL, "kafka.sasl.jaas.config": JAAS + " tokenauth=true;"}, "delegation tokens"),
        (
            {**SASL, "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required password="{SECRET}";'},
            "entries username and password",
        ),
        (
            {**SASL, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": JAAS + ";"},
            "not fit the mechanism PLAIN",
        ),
        ({**TLS, "kafka.ssl.truststore.location": "t.jks"}, "keytool -list -rfc"),
        (
            {**TLS, "kafka.ssl.keystore.location": "k.p12", "kafka.ssl.keystore.type": "PKCS12"},
            "openssl pkcs12",
        ),
        ({**TLS, "kafka.ssl.truststore.type": "PEM"}, "truststore.location is required"),
        (
            {
                **TLS,
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.location": "k",
                "kafka.ssl.keystore.password": SECRET,
            },
            "PEM files have no password",
        ),
        ({**TLS, "kafka.ssl.keystore.password": SECRET}, "not given, so JKS"),
        ({**TLS, "kafka.ssl.key.password": SECRET}, "encrypted key cannot be used"),
        ({**TLS, "kafka.ssl.keystore.key": SECRET}, "read from files"),
        ({**TLS, "kafka.ssl.key.location": "k"}, "needs kafka.ssl.certificate.location"),
        (
            {
                **TLS,
                "kafka.ssl.ca.location": "a",
                "kafka.ssl.truststore.location": "b",
                "kafka.ssl.truststore.type": "PEM",
            },
            "not both",
        ),
        ({**TLS, "kafka.ssl.endpoint.identification.algorithm": "dns"}, "one of https, ''"),
        ({**TLS, "kafka.ssl.enabled.protocols": "TLSv1"}, "not known to this client"),
    ],
)
def test_security_that_is_refused(options: Mapping[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        security(options)
    assert SECRET not in str(caught.value)


def test_no_secret_is_printed() -> None:
    read = parse({**SASL, "kafka.sasl.jaas.config": JAAS + ";"})
    assert read.fetch.connecting.security.login == Login("SCRAM-SHA-512", "u", SECRET)
    assert SECRET not in repr(read)


ALL_NAMES = [*KNOWN_OPTIONS, *REFUSED_OPTIONS, *STREAMING_OPTIONS, "kafka.unknown", "unknown", ""]
VALUES = [
    *("true", "SASL_SSL", "SSL", "PEM", "PLAIN", "1", "0", "[]", "{}", "9" * 5000),
    *('{"t":{"0":1}}', '{"t":[0]}', '{"t":{"0":null}}', '{"t":{"0":1e400}}', '{"t":{"\u0661":1}}'),
    *('{"t":{"0":' + "9" * 5000 + "}}", '{"t":{"0":' + "9" * 4000 + "}}", "m required a=b;"),
]


@given(
    st.dictionaries(st.sampled_from(ALL_NAMES), st.text() | st.sampled_from(VALUES), max_size=6),
    st.booleans(),
)
def test_any_options_are_parsed_or_refused_in_a_sentence(
    options: dict[str, str], is_complete: bool
) -> None:
    given_options = {**LEAST, **options} if is_complete else options
    for parser in (ReadOptions.parse, parse_fetch_options):
        problem = ""
        try:
            repr(parser(given_options))
        except OptionError as error:
            problem = str(error)
        assert len(problem) < 1000


# JAAS (Kafka's JaasConfig, Java's StreamTokenizer)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("m required;", {}),
        (' m\n Required // all\n a="b" /* c="d" */ e=\'f "g"\' ;', {"a": "b", "e": 'f "g"'}),
        (r'm required p="a\"b\\c\n\t\101\60";', {"p": 'a"b\\c\n\tA0'}),
        (r"m sufficient p='it\'s';", {"p": "it's"}),
        ("m optional a=b.c-d_e$ f=g;", {"a": "b.c-d_e$", "f": "g"}),
        ('m required p="/* no // comment */";', {"p": "/* no // comment */"}),
    ],
)
def test_jaas(text: str, entries: Mapping[str, str]) -> None:
    assert parse_jaas(text) == ("m", entries)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "m",
        "m;",
        "m maybe;",
        'm required a="b"',
        'm required a="b;',
        "m required a='b\n';",
        "m required a;",
        "m required a=;",
        "m required =a;",
        'm required "a"="b";',
        "m required a=b a=c;",
        "m required a=b; n required;",
        'm required p="a"b";',
        "m required a=b /* ;",
        "m required a=ü{};",
        "m " * (1 << 16),
    ],
)
def test_what_is_no_jaas_config(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|does) "):
        parse_jaas(text)


@given(st.text(), st.sampled_from("\"'"))
def test_any_password_can_be_quoted(password: str, quote: str) -> None:
    escaped = password.replace("\\", "\\\\").replace(quote, "\\" + quote)
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r")
    assert parse_jaas(f"m required p={quote}{escaped}{quote};") == ("m", {"p": password})


@given(st.text("m required;=\"'\\/*\nab ", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    problem = ""
    module, entries = "", {}
    try:
        module, entries = parse_jaas(text)
    except ValueError as error:
        problem = str(error)
    assert problem.startswith(("has ", "does ")) if problem else module and all(entries)
