"""Groups brought into a state by single requests, for the table of requests and answers.

absent      no request has named the group
offsets     Empty, never had a member: offsets were committed without one
emptied     Empty, its only member has left: generation 2
pending     Empty; `member` is a member id that was given out and has not joined yet
completing  CompletingRebalance: `member` leads generation 1 and has not sent SyncGroup
stable      Stable: `member` leads generation 1, alone
static      Stable: `member` has the instance id INSTANCE, generation 1
pair        Stable: `member` leads generation 2, `other` follows
preparing   PreparingRebalance: `member` of generation 1 has not joined again, `other` waits
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from metaquorum.wire.messages.describe_groups import DescribeGroupsRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.message import Message
from tests.conformance.groups.raw import (
    LIMIT_S,
    Connection,
    commit,
    coordinator_of,
    heartbeat,
    join,
    leave,
    sync,
)
from tests.nodes import unique, wait_until

INSTANCE: Final = "instance"
ASSIGNMENT: Final = b"assignment"


@dataclass
class GroupSetup:
    """A group in a known state; `member` and `generation` are those that the state names."""

    address: str
    topic: str
    group: str
    open: ExitStack = field(repr=False)
    member: str = ""
    other: str = ""
    generation: int = -1
    waiting: Connection | None = None

    def connection(self) -> Connection:
        return self.open.enter_context(Connection(self.address))

    def call(self, request: Message, version: int | None = None) -> Any:
        with Connection(self.address) as connection:
            return connection.call(request, version)

    def send(self, request: Message, version: int | None = None) -> Connection:
        """Send a request that may wait; its response is read from the returned connection."""
        connection = self.connection()
        connection.send(request, version)
        return connection

    def new_member_id(self, **options: Any) -> str:
        given = self.call(join(self.group, **options))
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return str(given.member_id)

    def state(self) -> str:
        described = self.call(DescribeGroupsRequest(groups=[self.group]))
        return str(described.groups[0].group_state)

    def wait_rebalance(self) -> None:
        """Wait until `member` is asked to join again, by its heartbeat."""
        request = heartbeat(self.group, self.generation, self.member)
        expected = ErrorCode.REBALANCE_IN_PROGRESS
        wait_until(lambda: self.call(request).error_code == expected, LIMIT_S, what="a rebalance")


def _absent(setup: GroupSetup) -> None:
    pass


def _offsets(setup: GroupSetup) -> None:
    done = setup.call(commit(setup.group, -1, "", setup.topic, {0: 3}))
    assert done.topics[0].partitions[0].error_code == 0


def _pending(setup: GroupSetup) -> None:
    setup.member = setup.new_member_id()


def _completing(setup: GroupSetup) -> None:
    _pending(setup)
    joined = setup.call(join(setup.group, setup.member))
    assert (joined.error_code, joined.leader) == (0, setup.member)
    setup.generation = joined.generation_id


def _synced(setup: GroupSetup) -> None:
    given = {name: ASSIGNMENT for name in (setup.member, setup.other) if name}
    done = setup.call(sync(setup.group, setup.generation, setup.member, given))
    assert (done.error_code, done.assignment) == (0, ASSIGNMENT)


def _stable(setup: GroupSetup) -> None:
    _completing(setup)
    _synced(setup)


def _emptied(setup: GroupSetup) -> None:
    _stable(setup)
    assert setup.call(leave(setup.group, (setup.member, None))).error_code == 0
    assert setup.state() == "Empty"


def _static(setup: GroupSetup) -> None:
    joined = setup.call(join(setup.group, instance=INSTANCE))
    assert joined.error_code == 0
    setup.member, setup.generation = joined.member_id, joined.generation_id
    given = {setup.member: ASSIGNMENT}
    done = setup.call(sync(setup.group, setup.generation, setup.member, given, instance=INSTANCE))
    assert done.error_code == 0


def _preparing(setup: GroupSetup) -> None:
    _stable(setup)
    setup.other = setup.new_member_id()
    setup.waiting = setup.send(join(setup.group, setup.other))
    setup.wait_rebalance()


def _pair(setup: GroupSetup) -> None:
    _preparing(setup)
    joined = setup.call(join(setup.group, setup.member))
    assert (joined.error_code, joined.leader) == (0, setup.member)
    setup.generation = joined.generation_id
    assert setup.waiting is not None
    assert setup.waiting.answer().generation_id == setup.generation
    _synced(setup)


BUILDERS: Final[dict[str, Callable[[GroupSetup], None]]] = {
    "absent": _absent,
    "offsets": _offsets,
    "emptied": _emptied,
    "pending": _pending,
    "completing": _completing,
    "stable": _stable,
    "static": _static,
    "pair": _pair,
    "preparing": _preparing,
}


def new_setup(bootstrap: str, topic: str, state: str, opened: ExitStack) -> GroupSetup:
    """Return a new group in the state."""
    group = unique("raw")
    setup = GroupSetup(coordinator_of(bootstrap, group), topic, group, opened)
    BUILDERS[state](setup)
    return setup
