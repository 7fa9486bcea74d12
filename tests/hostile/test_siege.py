"""Every attack, briefly: `python -m tests.hostile` goes on for as long as one likes."""

from collections.abc import Iterator

import pytest

from tests.hostile.attacks import ATTACKS
from tests.hostile.siege import Siege
from tests.nodes import elsewhere

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="the node is watched from outside")

SEED = 4
SECONDS = 0.7
IDLE_MS = 1500
GROUPS = (
    ["mutated_frames", "random_bytes", "strange_sizes"],
    ["bad_batches", "bombs", "strange_lookups"],
    ["half_open", "never_read", "slow_loris"],
    ["many_elements", "sessions", "storm"],
)


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    siege = Siege(tmp_path_factory.mktemp("siege"), SEED, idle_ms=IDLE_MS)
    siege.begin()
    yield siege
    siege.end()


@pytest.mark.parametrize("names", GROUPS, ids="-".join)
def test_a_node_bears(siege: Siege, names: list[str]) -> None:
    assert siege.attack(names, SECONDS)["connections"] > 0


def test_no_attack_is_left_out() -> None:
    assert sorted(name for group in GROUPS for name in group) == sorted(ATTACKS)
