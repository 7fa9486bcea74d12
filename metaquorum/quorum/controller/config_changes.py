"""The active controller's rules for config changes.

All changes of one resource are one batch: either all are accepted or none. Only values that differ
are written. Source: KIP-133, KIP-226, KIP-339; messages and error codes of Apache Kafka 4.3, which
rejects an invalid worker config with INVALID_REQUEST and an invalid topic config with
INVALID_CONFIG.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Final

from metaquorum.config.definition import ConfigKey, ConfigType, Scope, parse
from metaquorum.config.plan_limit import plan_named
from metaquorum.config.registry import (
    COMPACTION_LAGS,
    check_topic_values,
    check_worker_values,
    find_key,
    key_named,
)
from metaquorum.config.running_bounds import OVERRIDES, PER_IP, bound_of
from metaquorum.config.state_topics import own_complaint
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.internal_topics import INTERNAL_TOPICS, is_internal, no_unclean_election
from metaquorum.metadata.records import ConfigRecord
from metaquorum.metadata.topic_names import check_topic_name
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.leaders.eligible_leaders import (
    MIN_ISR,
    check_configs,
    reconfigured,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

CLEANUP_POLICY: Final = "cleanup.policy"
UNCLEAN_ELECTIONS: Final = "unclean.leader.election.enable"
ALL_WORKERS = ""  # name of the resource that holds the cluster-wide worker configs


class ConfigOp(IntEnum):
    """Operation on one config, numbered as in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2  # add the items that the list does not contain yet
    SUBTRACT = 3  # remove items from the list


@frozen
class ConfigChange:
    """Change of one config. `op` is a `ConfigOp`, or an unknown number that a client sent."""

    name: str
    op: int
    value: str | None = None


@frozen
class ResourceChange:
    """Config changes of one topic, one worker (`name` is its decimal id), or all workers.

    With `replace`, `changes` replace all configs of the resource (AlterConfigs).
    """

    scope: Scope
    name: str
    changes: Sequence[ConfigChange]
    replace: bool = False


def change_configs(image: MetadataImage, resource: ResourceChange) -> Decision[KafkaError | None]:
    """Decide the config changes of one resource; the answer is None or the error."""
    own = image.configs.get((resource.scope, resource.name), {})
    try:
        _check_resource(image, resource)
        wanted = _changed({} if resource.replace else own, resource)
        check_configs(image, resource.scope, resource.name, own, wanted)
        if resource.scope is Scope.WORKER:
            _check_running(image, resource.name, own, wanted)
        if resource.scope is Scope.TOPIC and is_internal(resource.name):
            _check_internal(image, resource.name, own, wanted)
    except KafkaError as error:
        return Decision(error)
    partitions = reconfigured(image, resource.scope, resource.name, wanted)
    return Decision(None, chain(_records(resource, own, wanted), partitions))


def _check_internal(
    image: MetadataImage, name: str, own: Mapping[str, str], wanted: Mapping[str, str]
) -> None:
    """Raise KafkaError if a changed config could remove, or stop, the state of an internal topic.

    A value from before such a rule stays until it is changed: `state_topics` bounds it.
    """
    topic = image.topic(name)
    replicas = (len(each.replicas) for each in topic.partitions) if topic is not None else ()
    fewest = min(replicas, default=1)
    if CLEANUP_POLICY in own and CLEANUP_POLICY not in wanted:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Topic '{name}' has the state of {INTERNAL_TOPICS[name]}: its {CLEANUP_POLICY} cannot"
            " be deleted.",
        )
    for config, text in wanted.items():
        if text == own.get(config):
            continue
        value = parse(key_named(Scope.TOPIC, config), text)
        if config == UNCLEAN_ELECTIONS and value:
            raise no_unclean_election(name)
        if (complaint := own_complaint(config, value, fewest)) is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Topic '{name}' has the state of {INTERNAL_TOPICS[name]}: {config} must be"
                f" {complaint}.",
            )


def _check_running(
    image: MetadataImage, name: str, own: Mapping[str, str], wanted: Mapping[str, str]
) -> None:
    """Raise KafkaError if running workers could not be used with a changed config."""
    for config, text in wanted.items():
        bound = bound_of(config)
        if bound is None or text == own.get(config):
            continue
        value = parse(key_named(Scope.WORKER, config), text)
        if (complaint := bound.complaint(value)) is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Invalid value {text} for {config}: {complaint}"
            )
    limits = {each: wanted.get(each) for each in (PER_IP, OVERRIDES)}
    if limits == {each: own.get(each) for each in limits}:
        return
    of_all = image.worker_configs(None) if name else {}
    texts = {each: text or of_all.get(each) for each, text in limits.items()}
    try:
        check_worker_values(
            {n: parse(key_named(Scope.WORKER, n), t) for n, t in texts.items() if t is not None}
        )
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None


def may_need_fewer(resource: ResourceChange) -> bool:
    """Return whether the change may affect min.insync.replicas, which may empty ELRs."""
    return resource.replace or any(change.name == MIN_ISR for change in resource.changes)


def prepare_configs(image: MetadataImage, resources: Sequence[ResourceChange]) -> Decision[None]:
    """Return the partition changes that these configs require, divisible into several batches.

    The config change itself is one batch, which repeats this for the few partitions that changed
    in the meantime.
    """
    records = (
        record
        for resource in resources
        for record in change_configs(image, resource).records
        if not isinstance(record, ConfigRecord)
    )
    return Decision(None, records, divisible=True)


def _check_resource(image: MetadataImage, resource: ResourceChange) -> None:
    names = [change.name for change in resource.changes]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in resource.changes if c.value is None and c.op != ConfigOp.DELETE]
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )
    if resource.scope is Scope.WORKER:
        _check_limits_of_plans(image, resource)
        return
    if not resource.name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(resource.name)
    if image.topic(resource.name) is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist."
        )


def _check_limits_of_plans(image: MetadataImage, resource: ResourceChange) -> None:
    """Raise KafkaError if the limit of a plan would be set or deleted, which DescribeConfigs shows.

    AlterConfigs is not refused, and leaves such a limit as it is: `kafka-configs.sh` before Kafka
    4.0 sends all dynamic configs of a worker that it has read, to change one of them.
    """
    for change in resource.changes:
        plan = None if resource.replace else image.plans.get(plan_named(change.name) or 0)
        if plan is not None and not plan.has_ended:
            plan_id = plan.header.plan_id
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{change.name} is the limit of plan {plan_id}, which ends with its moves: change"
                f" it by `mq-admin moves throttle {plan_id} RATE`.",
            )


def _changed(own: Mapping[str, str], resource: ResourceChange) -> dict[str, str]:
    """Return the resource's own configs after the change, with every changed value checked."""
    _check_dynamic(resource)
    configs = dict(own)
    for change in resource.changes:
        if change.op == ConfigOp.DELETE:
            configs.pop(change.name, None)
            continue
        if resource.replace and resource.scope is Scope.WORKER and plan_named(change.name):
            continue
        key = key_named(resource.scope, change.name)
        text = _new_text(key, configs.get(key.name), change)
        try:
            parse(key, text)
        except KafkaError as error:
            if resource.scope is Scope.WORKER:
                raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
            raise
        configs[key.name] = text
    if resource.scope is Scope.TOPIC:
        lags = (key_named(Scope.TOPIC, name) for name in COMPACTION_LAGS if name in configs)
        check_topic_values({key.name: parse(key, configs[key.name]) for key in lags})
    return configs


def _check_dynamic(resource: ResourceChange) -> None:
    fixed = [
        change.name
        for change in resource.changes
        if change.op != ConfigOp.DELETE
        and (key := find_key(resource.scope, change.name)) is not None
        and not key.dynamic
    ]
    if fixed:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{', '.join(fixed)}]",
        )


def _new_text(key: ConfigKey, own: str | None, change: ConfigChange) -> str:
    assert change.value is not None
    if change.op == ConfigOp.SET:
        return change.value
    if change.op not in (ConfigOp.APPEND, ConfigOp.SUBTRACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation {change.op} for {key.name}."
        )
    op = ConfigOp(change.op)
    if key.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {op.name} to key {key.name} because its type is not LIST.",
        )
    # Without a value of its own the resource starts from the default list, not from other layers.
    items = _items((key.default_text or "") if own is None else own)
    named = _items(change.value)
    if op is ConfigOp.APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return list(dict.fromkeys(item.strip() for item in text.split(","))) if text else []


def _records(
    resource: ResourceChange, own: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[ConfigRecord]:
    for name in own:
        if name not in wanted:
            yield ConfigRecord(int(resource.scope), resource.name, name, None)
    for name, text in wanted.items():
        if own.get(name) != text:
            yield ConfigRecord(int(resource.scope), resource.name, name, text)
