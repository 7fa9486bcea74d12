"""Fixtures: the nodes of the tests of groups, and programs that copy a topic exactly once."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance.groups.conftest import peer, served, three_nodes
from tests.conformance.transactions.copiers import Copiers

__all__ = ["copiers", "peer", "served", "three_nodes"]


@pytest.fixture
def copiers() -> Iterator[Copiers]:
    """Start copiers as processes, and kill those that are left at the end."""
    with ExitStack() as ended:
        yield Copiers(ended)
