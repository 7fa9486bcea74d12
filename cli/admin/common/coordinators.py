"""Output of commands that ask coordinators, of groups and of transactions."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from metaquorum.cli.admin.common.session import Session
from metaquorum.client.errors import AdminError


class Listed(Protocol):
    """A list from all coordinators: nodes that did not answer, and partitions without a leader."""

    @property
    def failures(self) -> Mapping[int, Exception]: ...

    @property
    def lost_partitions(self) -> Sequence[int]: ...


def report_missing(session: Session, found: Listed, missing: str, topic: str) -> None:
    """Report the nodes, and the partitions of the internal topic, whose rows are missing."""
    for error in found.failures.values():
        session.report(error)
    if count := len(found.lost_partitions):
        lost = "1 partition" if count == 1 else f"{count} partitions"
        text = f"{lost} of {topic} {'has' if count == 1 else 'have'} no leader"
        session.report(AdminError(f"{missing} are missing: {text}"))


def coordinator_text(session: Session, node_id: int) -> str:
    """Return the node id of a coordinator, and its address if it is known."""
    node = session.cluster.nodes.get(node_id)
    return f"{node_id} ({node.address})" if node else str(node_id)
