"""Plans of new committed offsets for groups, with the rules of Kafka's kafka-consumer-groups.

    target     new offset of a partition                           outside the log
    earliest   log start offset                                    -
    latest     high watermark                                      -
    offset     the given one                                       moved to the nearer end
    shift      committed + count; refused without a commit         moved to the nearer end
    time       first record of that time or later, else the end    -
    current    committed; the high watermark without a commit      kept

A plan from a file has an offset per partition, with the rule of `offset`. Source:
kafka-consumer-groups of Kafka 4.3.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from metaquorum.client.administration.admin import AdminClient
from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import BrokerError
from metaquorum.client.groups.coordinators import subject
from metaquorum.client.groups.lag import LogOffsets, log_offsets
from metaquorum.client.groups.offsets import Committed, committed_offsets
from metaquorum.client.groups.queries import describe_groups
from metaquorum.client.groups.values import WITHOUT_MEMBERS, GroupDescription
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.primitives.frozen import frozen

_MEMBERS_NAMED: Final = 5  # in an error


class ResetTarget(Enum):
    """Positions to which a reset moves committed offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


@frozen
class Reset:
    """A target, and its offset, count of records (SHIFT) or milliseconds since 1970 (TIME)."""

    target: ResetTarget
    value: int = 0


@frozen
class PlannedOffset:
    """New committed offset of a partition. `committed` None: no offset is committed.

    `clamped_from`: the offset that was asked for, if the log does not contain it.
    """

    where: TopicPartition
    committed: int | None
    new: int
    log: LogOffsets
    clamped_from: int | None = None


@frozen
class ResetPlan:
    """Plan for one group. `refused`: partitions without a new offset, and the reasons.

    `creates_group`: the group does not exist, and the commit creates it.
    """

    group: str
    offsets: Sequence[PlannedOffset]
    refused: Mapping[TopicPartition, BrokerError]
    creates_group: bool = False


async def plan_reset(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition], reset: Reset
) -> ResetPlan:
    """Return the new offset of each partition; nothing is changed.

    Raises BrokerError if the group has members (NON_EMPTY_GROUP) or cannot be read.
    """
    exists, committed = await _resettable(cluster, group)
    logs = await log_offsets(cluster, partitions)
    times: dict[TopicPartition, int] = {}
    if reset.target is ResetTarget.TIME:
        times = await _offsets_at(cluster, logs, reset.value)
    return planned(
        group,
        {where: wanted_offset(where, reset, committed, logs, times) for where in partitions},
        committed,
        logs,
        is_clamped=reset.target is not ResetTarget.CURRENT,
        creates_group=not exists,
    )


async def plan_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> ResetPlan:
    """Return the plan for given offsets, such as those of a file. Raises as `plan_reset`."""
    exists, committed = await _resettable(cluster, group)
    logs = await log_offsets(cluster, offsets)
    return planned(group, offsets, committed, logs, creates_group=not exists)


def planned(
    group: str,
    wanted: Mapping[TopicPartition, int | None],
    committed: Committed,
    logs: Mapping[TopicPartition, LogOffsets],
    *,
    is_clamped: bool = True,
    creates_group: bool = False,
) -> ResetPlan:
    """Return the plan for the wanted offsets. None: relative to a commit that there is not."""
    offsets: list[PlannedOffset] = []
    refused: dict[TopicPartition, BrokerError] = {}
    for where, offset in wanted.items():
        log = logs.get(where)
        if log is None:
            refused[where] = _refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "there is no such partition, or it has no leader",
                where,
            )
            continue
        if offset is None:
            text = "there is no committed offset to shift"
            refused[where] = _refusal(ErrorCode.INVALID_REQUEST, text, where)
            continue
        new = min(max(offset, log.start), log.end) if is_clamped else offset
        before = committed.get(where)
        offsets.append(
            PlannedOffset(
                where,
                None if before is None else before.offset,
                new,
                log,
                None if new == offset else offset,
            )
        )
    return ResetPlan(group, offsets, refused, creates_group)


def _refusal(code: ErrorCode, text: str, where: TopicPartition) -> BrokerError:
    return BrokerError(code, text, f"partition {where}")


def wanted_offset(
    where: TopicPartition,
    reset: Reset,
    committed: Committed,
    logs: Mapping[TopicPartition, LogOffsets],
    times: Mapping[TopicPartition, int],
) -> int | None:
    """Return the offset that the target means for a partition; None without a commit to shift.

    A partition without a log (`planned` refuses it) gets any.
    """
    log = logs.get(where, LogOffsets(0, 0))
    before = committed.get(where)
    match reset.target:
        case ResetTarget.EARLIEST:
            return log.start
        case ResetTarget.LATEST:
            return log.end
        case ResetTarget.CURRENT:
            return log.end if before is None else before.offset
        case ResetTarget.OFFSET:
            return reset.value
        case ResetTarget.SHIFT:
            return None if before is None else before.offset + reset.value
        case ResetTarget.TIME:
            return times.get(where, log.end)


async def _offsets_at(
    cluster: Cluster, partitions: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """Return the first offset from that time on, for partitions with such a record."""
    found = await AdminClient(cluster).list_offsets(dict.fromkeys(partitions, time_ms))
    offsets: dict[TopicPartition, int] = {}
    for where, outcome in found.items():
        if isinstance(outcome, BrokerError):
            raise outcome
        if outcome.offset >= 0:
            offsets[where] = outcome.offset
    return offsets


async def _resettable(cluster: Cluster, group: str) -> tuple[bool, Committed]:
    """Return whether the group exists, and its committed offsets.

    Raises BrokerError if the group has members. Groups of other protocols than the classic one are
    not described: the coordinator refuses the commit if they have members.
    """
    described = (await describe_groups(cluster, [group]))[group]
    is_described = not isinstance(described, BrokerError)
    if isinstance(described, BrokerError):
        if described.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise described
    else:
        check_without_members(described)
    committed = (await committed_offsets(cluster, [group]))[group]
    if isinstance(committed, BrokerError):
        raise committed
    return is_described or bool(committed), committed


def check_without_members(described: GroupDescription) -> None:
    """Raise NON_EMPTY_GROUP, with the names of the members, if the group has any."""
    if described.state in WITHOUT_MEMBERS and not described.members:
        return
    names = [member.name for member in described.members[:_MEMBERS_NAMED]]
    more = len(described.members) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    count = len(described.members)
    text = f"it is {described.state} and has {count} member{'' if count == 1 else 's'}"
    raise BrokerError(
        ErrorCode.NON_EMPTY_GROUP, f"{text}: {listed}" if listed else text, subject(described.group)
    )
