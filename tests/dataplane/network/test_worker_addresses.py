"""The worker addresses that clients receive, by their listener."""

from dataclasses import replace

from metaquorum.dataplane.network.worker_addresses import (
    WorkerAddress,
    live_worker_ids,
    live_workers,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import Endpoint, RegisterWorkerRecord
from tests.metaquorum.quorum.storage.histories import CLUSTER


def registered(worker_id: int, *listeners: str, fenced: bool = False) -> RegisterWorkerRecord:
    endpoints = tuple(
        Endpoint(name, f"{name}-{worker_id}", 9092 + number, "PLAINTEXT")
        for number, name in enumerate(listeners)
    )
    return RegisterWorkerRecord(
        worker_id, bytes(16), 1, endpoints, "machine", "rack", (), (), fenced
    )


IMAGE = replace(
    MetadataImage.empty(CLUSTER),
    workers={
        1: registered(1, "inside", "outside"),
        2: registered(2, "inside"),
        3: registered(3, "inside", "outside", fenced=True),
    },
)


def test_a_client_is_sent_on_by_listeners_of_the_name_by_which_it_came() -> None:
    assert list(live_workers(IMAGE, "outside")) == [WorkerAddress(1, "outside-1", 9093, "rack")]
    assert [(each.worker_id, each.host) for each in live_workers(IMAGE, "inside")] == [
        (1, "inside-1"),
        (2, "inside-2"),
    ]
    assert list(live_workers(IMAGE, "nowhere")) == []


def test_workers_that_are_fenced_are_not_live() -> None:
    assert list(live_worker_ids(IMAGE)) == [1, 2]
