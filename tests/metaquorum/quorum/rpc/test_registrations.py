"""Registrations of nodes of two versions state the feature levels of the node that sends them."""

import msgpack
import pytest

from metaquorum.metadata.records import Endpoint, FeatureRange
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.worker_registration import (
    ControllerRegistration,
    WorkerRegistration,
)
from metaquorum.quorum.rpc.codec import Codec

WORKERS, CONTROLLERS = Codec(WorkerRegistration), Codec(ControllerRegistration)
# Written by commit 958e3c3, for Endpoint("PLAINTEXT", "h", 9092, "PLAINTEXT").
OLD_WORKER = (
    "9401c410000000000000000000000000000000009194a9504c41494e54455854"
    "a168cd2384a9504c41494e54455854a4686f7374"
)
OLD_CONTROLLER = "9402c41000000000000000000000000000000000a168cd4a94"
OLD_FEATURES = (
    FeatureRange("metadata.version", 1, 1),
    FeatureRange("eligible.leader.replicas.version", 0, 1),
)


def test_an_old_node_that_omits_its_levels_is_not_taken_for_a_new_one() -> None:
    """Otherwise a level could be raised that the old node cannot read."""
    worker = WORKERS.decode(bytes.fromhex(OLD_WORKER))
    assert worker.endpoints == (Endpoint("PLAINTEXT", "h", 9092, "PLAINTEXT"),)
    assert worker.features == OLD_FEATURES
    assert CONTROLLERS.decode(bytes.fromhex(OLD_CONTROLLER)).features == OLD_FEATURES


@pytest.mark.parametrize(
    "data",
    [
        WORKERS.encode(WorkerRegistration(1, bytes(16), (), "host", features=SUPPORTED_FEATURES)),
        CONTROLLERS.encode(ControllerRegistration(2, bytes(16), "h", 1, SUPPORTED_FEATURES)),
    ],
    ids=["worker", "controller"],
)
def test_a_node_states_its_levels_in_bytes(data: bytes) -> None:
    """An old active controller would take its own levels for those that are missing."""
    written = [list(each) for each in SUPPORTED_FEATURES]
    assert written in msgpack.unpackb(data)
