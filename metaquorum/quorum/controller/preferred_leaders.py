"""Automatic preferred leader election (auto.leader.rebalance.enable).

A worker that returns after a failure leads no partition: other workers took over and keep leading.
Periodically, the active controller looks for workers with an imbalance: of the partitions that
prefer the worker (it is their first replica), other workers lead a larger share than
leader.imbalance.per.broker.percentage. If the worker is live, in sync and not draining it becomes
the leader again, in steps small enough that clients notice little.

Source: Kafka's KafkaController.checkAndTriggerAutoLeaderRebalance (the percentage, which KRaft left
out) and ReplicationControlManager.maybeBalancePartitionLeaders (the bound).
"""

import logging
from collections.abc import Iterator
from typing import Final

from metaquorum.config.resolution import Configs
from metaquorum.metadata.image import MetadataImage, PartitionImage, partition_record
from metaquorum.metadata.records import MetadataRecord
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.leaders.leader_selection import led_by, may_lead
from metaquorum.quorum.controller.proposer import Proposer
from metaquorum.quorum.controller.worker_registration import SCAN_PARTITIONS
from metaquorum.runtime.interfaces import Clock, sleep
from metaquorum.wire.primitives.errors import KafkaError

logger = logging.getLogger(__name__)

MAX_RETURNED: Final = 1000  # leaders in one step
NEXT_RETURN_S: Final = 1.0  # pause after a full step


class LeaderReturnSummary:
    """Count of preferred leaders elected by worker. Complete once all records are generated."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        """Return the counts, for example `7 by worker 1, 5 by worker 3`."""
        return ", ".join(f"{count} by worker {at}" for at, count in sorted(self.counts.items()))


def return_leaders(image: MetadataImage, most_percent: int) -> Decision[LeaderReturnSummary]:
    """Elect preferred leaders for imbalanced workers, at most `MAX_RETURNED` of them.

    A worker is imbalanced if others lead more than `most_percent` of its preferred partitions.
    """
    returned = LeaderReturnSummary()
    return Decision(returned, _records(image, most_percent, returned), divisible=True)


def _records(
    image: MetadataImage, most_percent: int, returned: LeaderReturnSummary
) -> Iterator[MetadataRecord | None]:
    preferred: dict[int, int] = {}
    elsewhere: dict[int, int] = {}
    looked_at = 0
    for topic in image.topics.each():
        for partition in topic.partitions:
            first = partition.replicas[0]
            preferred[first] = preferred.get(first, 0) + 1
            if partition.leader != first:
                elsewhere[first] = elsewhere.get(first, 0) + 1
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
    lacking = {
        worker_id
        for worker_id, count in elsewhere.items()
        if count * 100 > most_percent * preferred[worker_id]
        and image.is_live(worker_id)
        and not image.is_draining(worker_id)
    }
    if not lacking:
        return
    left = MAX_RETURNED
    for topic in image.topics.each():
        for number, partition in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % SCAN_PARTITIONS == 0:
                yield None
            if partition.replicas[0] in lacking and _may_return(partition, image):
                after = led_by(partition, partition.replicas[0])
                assert after is not None
                returned.counts[after.leader] = returned.counts.get(after.leader, 0) + 1
                left -= 1
                yield partition_record(topic.topic_id, number, after)
                if not left:
                    return


def _may_return(partition: PartitionImage, image: MetadataImage) -> bool:
    first = partition.replicas[0]
    return (
        partition.leader != first
        and first in partition.isr
        and may_lead(partition, first, image.is_live)
    )


async def keep_balance(proposer: Proposer, clock: Clock, configs: Configs) -> None:
    """Elect preferred leaders periodically, until cancelled; return at once if disabled."""
    if not configs.boolean("auto.leader.rebalance.enable"):
        return
    interval_s = configs.integer("leader.imbalance.check.interval.seconds")
    most_percent = configs.integer("leader.imbalance.per.broker.percentage")
    wait_s: float = interval_s
    while True:
        await sleep(clock, wait_s)
        wait_s = interval_s
        try:
            changed = await proposer.change(lambda image: return_leaders(image, most_percent))
        except KafkaError as error:
            logger.warning(
                "preferred leader election failed: %s; the next check tries again", error.message
            )
            continue
        returned = changed.answer
        if returned.total:
            logger.info(
                "elected preferred leaders of %d partitions: %s",
                returned.total,
                returned,
            )
        if returned.total == MAX_RETURNED:
            wait_s = NEXT_RETURN_S
