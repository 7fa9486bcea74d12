"""All attacks, for a short time; `python -m tests.hostile` runs them for any time."""

from collections.abc import Iterator

import pytest

from tests.hostile.attacks import ATTACKS
from tests.hostile.siege import Siege, StrangersSiege
from tests.hostile.strangers import STRANGERS
from tests.nodes import PATIENCE_S, elsewhere

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="the node is watched from outside")

SEED = 4
SECONDS = 0.7
IDLE_MS = 1500
GROUPS = (
    ["mutated_frames", "random_bytes", "strange_sizes"],
    ["bad_batches", "bombs", "strange_lookups"],
    ["half_open", "never_read", "slow_loris"],
    ["many_elements", "sessions", "storm", "false_replicas"],
)


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    siege = Siege(tmp_path_factory.mktemp("siege"), SEED, IDLE_MS, PATIENCE_S / 2)
    siege.begin()
    yield siege
    siege.end()


@pytest.mark.conformance
@pytest.mark.parametrize("names", GROUPS, ids="-".join)
def test_a_node_bears(siege: Siege, names: list[str]) -> None:
    assert siege.attack(names, SECONDS)["connections"] > 0


STRANGERS_GROUPS = (
    ["half_handshakes", "mutated_handshakes"],
    ["handshake_storm", "other_protocols"],
    ["sasl_disorder", "guesses", "overstayed_sessions"],
)


@pytest.fixture(scope="module")
def strangers_siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrangersSiege]:
    siege = StrangersSiege(tmp_path_factory.mktemp("strangers"), SEED, IDLE_MS, PATIENCE_S / 2)
    siege.begin()
    yield siege
    siege.end()


@pytest.mark.conformance
@pytest.mark.parametrize("names", STRANGERS_GROUPS, ids="-".join)
def test_a_node_bears_strangers(strangers_siege: StrangersSiege, names: list[str]) -> None:
    assert strangers_siege.attack(names, SECONDS)["connections"] > 0


def test_no_attack_is_left_out() -> None:
    assert sorted(name for group in GROUPS for name in group) == sorted(ATTACKS)
    assert sorted(name for group in STRANGERS_GROUPS for name in group) == sorted(STRANGERS)
