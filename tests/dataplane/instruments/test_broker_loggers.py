"""The levels of a worker's loggers, read and changed by clients as resources of BROKER_LOGGER."""

import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from metaquorum.wire.messages import alter_configs
from metaquorum.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.messages.list_config_resources import ListConfigResourcesRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.serving import RawClient, Simulated, run_simulated, simulated

LOGGERS = 8
SET, DELETE, APPEND, SUBTRACT = range(4)
NAME = "metaquorum.dataplane.log.recovery"
KEPT = (NAME, "metaquorum.dataplane", "root")
NOT_ALLOWED = "is not allowed for the BROKER_LOGGER resource"
Change = tuple[str, int, str | None]
VALID = "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"


@pytest.fixture(autouse=True)
def own_levels() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in KEPT if name != "root"}
    root = logging.getLogger()
    root_level = root.level
    root.setLevel(logging.INFO)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
    root.setLevel(root_level)


async def change(
    client: RawClient,
    *changes: Change,
    node: str = "1",
    validate_only: bool = False,
) -> tuple[ErrorCode, str | None]:
    resource = AlterConfigsResource(
        resource_type=LOGGERS,
        resource_name=node,
        configs=[AlterableConfig(name=a, config_operation=b, value=c) for a, b, c in changes],
    )
    message = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (answer,) = (await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, message, 1)).responses
    assert (answer.resource_type, answer.resource_name) == (LOGGERS, node)
    return ErrorCode(answer.error_code), answer.error_message


async def describe(
    client: RawClient, *names: str, node: str = "1"
) -> tuple[ErrorCode, str | None, dict[str, str]]:
    resource = DescribeConfigsResource(
        resource_type=LOGGERS, resource_name=node, configuration_keys=list(names) or None
    )
    message = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, message, 4)).results
    for each in result.configs:
        assert (each.config_source, each.config_type, each.synonyms) == (6, 0, [])
        assert (each.read_only, each.is_sensitive) == (False, False)
    shown = {each.name: each.value for each in result.configs}
    return ErrorCode(result.error_code), result.error_message, shown


async def levels(client: RawClient, *names: str) -> dict[str, str]:
    code, _, shown = await describe(client, *names)
    assert code is ErrorCode.NONE
    return shown


@simulated()
async def test_levels_are_set_unset_and_shown(node: Simulated) -> None:
    client = await node.connect()
    everything = await levels(client)
    named = ("metaquorum", "metaquorum.dataplane", "metaquorum.dataplane.log")
    assert {"root", *named, NAME, f"{NAME}.recovery"} <= set(everything)
    module = logging.getLogger(f"{NAME}.recovery")
    assert await change(client, (NAME, SET, "DEBUG")) == (ErrorCode.NONE, None)
    assert module.isEnabledFor(logging.DEBUG)
    assert await levels(client, NAME, "root", "no.such") == {NAME: "DEBUG", "root": "INFO"}
    assert await change(client, ("root", SET, "ERROR"), (NAME, DELETE, None)) == (
        ErrorCode.NONE,
        None,
    )
    assert await levels(client, NAME, "root") == {NAME: "ERROR", "root": "ERROR"}
    assert not module.isEnabledFor(logging.WARNING)
    assert await change(client, (NAME, SET, "TRACE"), validate_only=True) == (
        ErrorCode.NONE,
        None,
    )
    assert await levels(client, NAME) == {NAME: "ERROR"}


NOT_SUPPORTED = "as it is not a supported log level"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([("no.such", SET, "INFO")], "Logger no.such does not exist!"),
        ([("no.such", DELETE, None)], "Logger no.such does not exist!"),
        ([(NAME, SET, "DEBUG"), ("no.such", SET, "INFO")], "Logger no.such does not exist!"),
        (
            [(NAME, SET, "debug")],
            f"Cannot set the log level of {NAME} to debug {NOT_SUPPORTED}. {VALID}",
        ),
    ],
)
def test_unknown_loggers_and_levels_are_refused(changes: list[Change], text: str) -> None:
    run_simulated(refused(changes, ErrorCode.INVALID_CONFIG, text))


@pytest.mark.parametrize(
    ("changes", "node", "text"),
    [
        ([(NAME, SET, None)], "1", f"Null value not supported for : {NAME}"),
        ([("root", DELETE, None)], "1", "Removing the log level of the root logger is not allowed"),
        ([(NAME, APPEND, "DEBUG")], "1", f"APPEND operation {NOT_ALLOWED}"),
        ([(NAME, SUBTRACT, "DEBUG")], "1", f"SUBTRACT operation {NOT_ALLOWED}"),
        ([(NAME, 9, "DEBUG")], "1", f"Unknown operation type 9 {NOT_ALLOWED}"),
        (
            [(NAME, SET, "DEBUG"), (NAME, DELETE, None)],
            "1",
            "Error due to duplicate config keys",
        ),
        ([(NAME, SET, "DEBUG")], "2", "Unexpected node id. Expected 1, but received 2"),
        ([(NAME, SET, "DEBUG")], "", "Node id must be an integer, but it is: "),
    ],
)
def test_odd_changes_are_refused_as_by_a_real_kafka(
    changes: list[Change], node: str, text: str
) -> None:
    """All texts are those of Kafka 4.3.1, except for an unknown operation, on which it fails."""
    run_simulated(refused(changes, ErrorCode.INVALID_REQUEST, text, node))


def refused(
    changes: list[Change], code: ErrorCode, text: str, node: str = "1"
) -> Callable[[Simulated], Awaitable[None]]:
    """Return a scenario in which the changes are refused, all of them."""

    async def scenario(here: Simulated) -> None:
        client = await here.connect()
        before = await levels(client)
        assert await change(client, *changes, node=node) == (code, text)
        assert await levels(client) == before

    return scenario


@simulated()
async def test_other_nodes_are_not_described(node: Simulated) -> None:
    client = await node.connect()
    for name, text in (
        ("2", "Unexpected broker id, expected 1 but received 2"),
        ("", "Broker id must not be empty"),
        ("x", "Broker id must be an integer, but it is: x"),
    ):
        assert await describe(client, node=name) == (ErrorCode.INVALID_REQUEST, text, {})


@simulated()
async def test_the_older_request_does_not_change_them(node: Simulated) -> None:
    client = await node.connect()
    config = alter_configs.AlterableConfig(name=NAME, value="DEBUG")
    resource = alter_configs.AlterConfigsResource(
        resource_type=LOGGERS, resource_name="1", configs=[config]
    )
    message = alter_configs.AlterConfigsRequest(resources=[resource])
    (answer,) = (await client.call(ApiKey.ALTER_CONFIGS, message, 2)).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message == "Unknown resource type 8"


@simulated()
async def test_loggers_are_listed_by_worker(node: Simulated) -> None:
    client = await node.connect()
    message = ListConfigResourcesRequest(resource_types=[LOGGERS])
    answer = await client.call(ApiKey.LIST_CONFIG_RESOURCES, message, 1)
    listed = [(each.resource_type, each.resource_name) for each in answer.config_resources]
    assert listed == [(LOGGERS, "1")]


@simulated()
async def test_the_log_names_the_client_that_changes_a_level(
    node: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if no line below FATAL appears before, or after."""
    client = await node.connect()
    for level in ("FATAL", "INFO"):
        caplog.clear()
        assert (await change(client, ("root", SET, level)))[0] is ErrorCode.NONE
        assert "'User:ANONYMOUS' at " in caplog.text
        assert f"sets log levels: root to {level}, it was" in caplog.text
    # Lines of clients have a limit.
    caplog.clear()
    for _ in range(100):
        await change(client, (NAME, SET, "DEBUG"))
    assert len(caplog.records) < 30
