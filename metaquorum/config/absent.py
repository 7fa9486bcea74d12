"""Configs of Kafka's other kinds of resources: groups, and subscriptions to the metrics of clients.

They are shown with Kafka's defaults, as for a resource that has none of its own, and are read-only:
the classic protocol of groups has no configs by group, and no client sends its metrics here.

Source: GroupConfig and ClientMetricsConfigs of Apache Kafka 4.3.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from metaquorum.config.definition import BOOLEAN, INT, LIST, STRING, ConfigType
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError


class AbsentKind(IntEnum):
    """Kind of resource, numbered as the protocol's ConfigResource.Type."""

    CLIENT_METRICS = 16
    GROUP = 32


class AbsentConfig(NamedTuple):
    """One row; `worker` is Kafka's config that gives the default, None if there is none."""

    name: str
    type: ConfigType
    text: str
    doc: str
    worker: str | None = None


def _group_config(
    name: str, type_: ConfigType, text: str, doc: str, *, of_worker: bool = True
) -> AbsentConfig:
    return AbsentConfig(name, type_, text, doc, f"group.{name}" if of_worker else name)


ABSENT_CONFIGS: Final[Mapping[AbsentKind, tuple[AbsentConfig, ...]]] = MappingProxyType(
    {
        AbsentKind.CLIENT_METRICS: (
            AbsentConfig("interval.ms", INT, "300000", "Milliseconds between two reports."),
            AbsentConfig("match", LIST, "", "Which clients report."),
            AbsentConfig("metrics", LIST, "", "Prefixes of the metrics in a report."),
        ),
        AbsentKind.GROUP: (
            _group_config(
                "consumer.assignment.interval.ms",
                INT,
                "1000",
                "Milliseconds between two assignments of a group of the consumer protocol.",
            ),
            _group_config(
                "consumer.heartbeat.interval.ms",
                INT,
                "5000",
                "Milliseconds between two heartbeats of a member of the consumer protocol.",
            ),
            _group_config(
                "consumer.session.timeout.ms",
                INT,
                "45000",
                "Milliseconds without a heartbeat until a member of the consumer protocol fails.",
            ),
            _group_config(
                "share.assignment.interval.ms",
                INT,
                "1000",
                "Milliseconds between two assignments of a share group.",
            ),
            _group_config(
                "share.auto.offset.reset",
                STRING,
                "latest",
                "Where a share group begins in a partition.",
                of_worker=False,
            ),
            _group_config(
                "share.delivery.count.limit",
                INT,
                "5",
                "How often a share group delivers a record at most.",
            ),
            _group_config(
                "share.heartbeat.interval.ms",
                INT,
                "5000",
                "Milliseconds between two heartbeats of a member of a share group.",
            ),
            _group_config(
                "share.isolation.level",
                STRING,
                "read_uncommitted",
                "Which transactional records a share group delivers.",
                of_worker=False,
            ),
            _group_config(
                "share.partition.max.record.locks",
                INT,
                "2000",
                "Records of one partition that a share group locks at most.",
            ),
            _group_config(
                "share.record.lock.duration.ms",
                INT,
                "30000",
                "Milliseconds that a share group locks a delivered record.",
            ),
            _group_config(
                "share.renew.acknowledge.enable",
                BOOLEAN,
                "true",
                "Whether a member of a share group may keep a record locked for longer.",
                of_worker=False,
            ),
            _group_config(
                "share.session.timeout.ms",
                INT,
                "45000",
                "Milliseconds without a heartbeat until a member of a share group fails.",
            ),
            _group_config(
                "streams.assignment.interval.ms",
                INT,
                "1000",
                "Milliseconds between two assignments of a streams group.",
            ),
            _group_config(
                "streams.heartbeat.interval.ms",
                INT,
                "5000",
                "Milliseconds between two heartbeats of a member of a streams group.",
            ),
            _group_config(
                "streams.initial.rebalance.delay.ms",
                INT,
                "3000",
                "Milliseconds that the first rebalance of a streams group waits for members.",
            ),
            _group_config(
                "streams.num.standby.replicas",
                INT,
                "0",
                "Standby replicas of each task of a streams group.",
            ),
            _group_config(
                "streams.session.timeout.ms",
                INT,
                "45000",
                "Milliseconds without a heartbeat until a member of a streams group fails.",
            ),
        ),
    }
)

_UNNAMED: Final = {
    AbsentKind.CLIENT_METRICS: "Client metrics subscription name must not be empty",
    AbsentKind.GROUP: "Group name must not be empty",
}
_CANNOT_BE_SET: Final = {
    AbsentKind.CLIENT_METRICS: (
        "Configs of client metrics cannot be set: no client sends its metrics here"
    ),
    AbsentKind.GROUP: (
        "Configs of groups cannot be set: the classic protocol of groups, the only one here, has"
        " none"
    ),
}


def absent_configs(kind: AbsentKind, name: str) -> tuple[AbsentConfig, ...]:
    """Return the configs of the resource. Raises KafkaError if it has no name."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, _UNNAMED[kind])
    return ABSENT_CONFIGS[kind]


def refuse_change(resource_type: int) -> None:
    """Raise KafkaError if the type is one whose configs cannot be set."""
    if resource_type in _CANNOT_BE_SET:
        raise KafkaError(ErrorCode.INVALID_REQUEST, _CANNOT_BE_SET[AbsentKind(resource_type)])
