"""Log lines of a leader about ISR changes."""

import logging

import pytest

from metaquorum.dataplane.partition.leader_state import UNKNOWN, LeaderState
from metaquorum.dataplane.replication.isr_log import MOST_NAMED, IsrLog
from metaquorum.metadata.image import MetadataImage, PartitionImage
from metaquorum.metadata.records import MetadataRecord, WorkerChangeRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.worker_registration import register_worker, unfence_worker
from tests.dataplane.replication.together import Together, run_together
from tests.dataplane.serving import batch_of
from tests.metaquorum.quorum.storage.histories import CLUSTER, registration


def image_of(*workers: int) -> MetadataImage:
    image = MetadataImage.empty(CLUSTER)
    for worker_id in workers:
        image, _ = replay(image, register_worker(image, registration(worker_id)).all_records())
        epoch = image.broker_epoch(worker_id)
        image, _ = replay(image, unfence_worker(image, worker_id, epoch).all_records())
    return image


def changed(image: MetadataImage, worker_id: int, **what: bool) -> MetadataImage:
    record: MetadataRecord = WorkerChangeRecord(worker_id, image.broker_epoch(worker_id), **what)
    return replay(image, [record])[0]


def state(isr: tuple[int, ...], **others: tuple[int, ...]) -> PartitionImage:
    return PartitionImage((1, 2, 3), isr, 1, 5, 9, **others)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("after", "image", "why"),
    [
        (state((1, 3)), changed(image_of(1, 2, 3), 2, fenced=True), "its worker is fenced"),
        (
            state((1, 3)),
            changed(image_of(1, 2, 3), 2, in_controlled_shutdown=True),
            "its worker is shutting down",
        ),
        (
            state((1, 3)),
            image_of(1, 2, 3),
            "its worker is shutting down or has restarted",
        ),
        (state((1, 3)), image_of(1, 3), "its worker is unregistered"),
        (state((1, 3), offline=(2,)), image_of(1, 2, 3), "its log directory failed"),
        (state((1, 3), blank=(2,)), image_of(1, 2, 3), "its log is lost"),
    ],
)
def test_who_left_by_the_metadata_is_told_with_what_it_says(
    after: PartitionImage, image: MetadataImage, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    news = IsrLog()
    news.note("t-0", (1, 2, 3), after, None, image)
    with caplog.at_level(logging.INFO):
        news.log_changes()
        news.log_changes()
    assert lines(caplog) == [f"replica 2 left the ISR ({why}): t-0"]


def test_how_far_behind_who_was_too_slow_is_told_and_thousands_of_partitions_are_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image, news = image_of(1, 2, 3), IsrLog()
    for number in range(1000):
        leadership = LeaderState(1, lambda: 1, 5, 0, 10.0)
        leadership.assign((1, 2), (1, 2), 8, 0.0)
        leadership.fetched(2, UNKNOWN, 3, 0, 3, 1.0)
        change = leadership.propose(3, 5 + number, 21.5, lambda *_: True)
        assert change is not None
        leadership.assign((1, 2), (1,), 9, 22.0)
        assert leadership.made is change
        news.note(f"t-{number}", (1, 2), state((1,)), leadership.made, image)
    for number in range(MOST_NAMED):
        news.note(f"u-{number}", (1,), state((1, 3)), None, image)
    with caplog.at_level(logging.INFO):
        news.log_changes()
    assert lines(caplog) == [
        "replica 2 left 1000 ISRs (not caught up for 20.5 s, 1001 records behind at most): "
        "t-0, t-1, t-2, t-3, t-4, ...",
        "replica 3 joined 5 ISRs (caught up): u-0, u-1, u-2, u-3, u-4",
    ]


def test_a_leader_and_the_controller_tell_why_a_replica_left_and_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Together) -> None:
        await cluster.create("t", (1, 2, 3))
        client = await cluster.connect(1)
        await client.produce("t", batch_of(b"x"))
        with caplog.at_level(logging.INFO):
            await cluster.kill(3)
            await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2))
            await cluster.restart(3)
            await cluster.until(lambda: cluster.state("t", 1).isr == (1, 2, 3))
            await cluster.world.sleep(1.0)

    run_together(scenario)
    told = lines(caplog)
    assert any(line.startswith("replica 3 left the ISR (") for line in told)
    assert "replica 3 joined the ISR (caught up): t-0" in told
    assert "fenced one worker: 1 ISR shrank" in told
