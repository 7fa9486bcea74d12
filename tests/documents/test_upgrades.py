"""The command that ends an upgrade, as documented, raises every feature to its highest level."""

import re

import pytest

from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from tests.nodes import ROOT

# Pages that have the command for a whole cluster, not for one feature that needs a level.
PAGES = ("docs/howto/run-three-nodes.md", "cli/admin/cluster.py")
COMMAND = re.compile(
    r"mq-admin(?: -b \S+)? cluster upgrade (metadata\.version=\d+.*)$", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES)
def test_the_documented_upgrade_raises_the_highest_levels(page: str) -> None:
    commands = COMMAND.findall((ROOT / page).read_text())
    assert commands
    highest = {each.name: each.most for each in SUPPORTED_FEATURES}
    for words in commands:
        for word in words.split():
            name, _, level = word.partition("=")
            if name in highest:
                assert int(level) == highest[name], words
