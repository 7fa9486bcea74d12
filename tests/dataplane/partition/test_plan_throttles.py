"""Throttles that plans of moves cause on each side of a worker."""

from dataclasses import replace

import trio

from metaquorum.config.definition import Scope
from metaquorum.config.resolution import Configs
from metaquorum.dataplane.partition.plan_throttles import PlanThrottles
from metaquorum.dataplane.quotas.replication_quota import UNLIMITED, ReplicationQuotas
from metaquorum.metadata.image import MetadataDelta, MetadataImage, partition_record
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.plans.move_plans import START
from tests.dataplane.replication.replicas import Setting
from tests.metaquorum.quorum.controller.plans.test_move_plans import (
    TOPIC_ID,
    changed,
    in_sync,
    loaded,
    made,
    moves,
    settled,
    state,
)

RATE = 1000  # bytes per second, as in `new`


class Worker:
    """The throttles of one worker, as its metadata changes."""

    def __init__(self, worker_id: int) -> None:
        self.quotas = ReplicationQuotas(Configs(Scope.WORKER, ()), lambda: 0.0)
        self.throttles = PlanThrottles(Setting(worker_id).context, self.quotas)

    def sees(self, image: MetadataImage, delta: MetadataDelta | None = None) -> None:
        """Publish the image; without `delta` its plan is part of the change."""
        if delta is None:
            delta = replace(MetadataDelta.none(image), plan_ids=dict.fromkeys(image.plans))
        trio.run(self.throttles.publish, delta, image)

    @property
    def rates(self) -> tuple[int, int]:
        return self.quotas.leader.rate_limit, self.quotas.follower.rate_limit


def larger() -> MetadataImage:
    """Return an image in which a plan moves a partition from workers 1 and 2 to 3, 4 and 5."""
    return settled(changed(loaded(made(1), moves(1, (3, 4, 5))), START))


def test_a_worker_is_throttled_as_what_it_is_in_the_moves() -> None:
    image = larger()
    for worker_id, rates in (
        (1, (RATE, UNLIMITED)),
        (2, (RATE, UNLIMITED)),
        (3, (UNLIMITED, RATE)),
        (6, (UNLIMITED, UNLIMITED)),
    ):
        worker = Worker(worker_id)
        worker.sees(image)
        assert worker.rates == rates
        worker.sees(in_sync(image, 0))
        assert worker.rates == (UNLIMITED, UNLIMITED)


def test_a_replica_that_is_added_is_throttled_as_leader_once_it_leads() -> None:
    """It may lead before the others of the target are in sync, and then sends to all of them."""
    image = larger()
    worker, other = Worker(3), Worker(4)
    worker.sees(image)
    other.sees(image)
    known = state(image, 0)
    led: list[MetadataRecord] = [
        partition_record(
            TOPIC_ID,
            0,
            replace(known, isr=(3, 2), leader=3, leader_epoch=known.leader_epoch + 1),
        )
    ]
    later, delta = replay(image, led)
    assert not delta.plan_ids, "an election changes no plan"
    worker.sees(later, delta)
    other.sees(later, delta)
    assert worker.rates == (RATE, RATE)
    assert other.rates == (UNLIMITED, RATE)
