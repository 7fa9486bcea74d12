"""Differences of two images, computed without the records between them."""

import pytest
import trio

from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.loader import difference
from metaquorum.metadata.replay import replay
from tests.metaquorum.quorum.storage.histories import CLUSTER, Spec, history

SOME: list[Spec] = [
    ("register", 1, 1),
    ("register", 2, 1),
    ("create", "kept", 1),
    ("create", "gone", 1),
    ("config", "1", "7"),
]
LESS: list[Spec] = [("delete", "gone", None), ("config", "1", None), ("unregister", 2, None)]


def image(specs: list[Spec]) -> MetadataImage:
    return replay(MetadataImage.empty(CLUSTER), history(specs))[0]


@pytest.mark.parametrize("is_back", [False, True])
def test_what_is_gone_is_a_difference_as_what_is_new_is(is_back: bool) -> None:
    """Otherwise a worker that loads a snapshot would keep topics deleted in the meantime."""
    images = image(SOME), image(SOME + LESS)
    before, after = reversed(images) if is_back else images
    delta: MetadataDelta = trio.run(difference, before, after)
    changed = [(one is None, other is None) for one, other in delta.topics()]
    assert (is_back, not is_back) in changed
    assert {name for _, name in delta.resources} == {"1", "gone"}
    assert list(delta.worker_ids) == [2]
