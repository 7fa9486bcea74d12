"""Error codes of JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit in each state.

Each row was verified with Apache Kafka 4.3.1. `tests.conformance.groups.setups` says what the
states are.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from metaquorum.wire.primitives.errors import ErrorCode as E
from metaquorum.wire.schema.message import Message
from tests.conformance.clients import create
from tests.conformance.groups.raw import commit, heartbeat, join, leave, subscription, sync
from tests.conformance.groups.setups import INSTANCE, GroupSetup, new_setup
from tests.nodes import Peer, unique

Request = Callable[[GroupSetup], Message]
UNKNOWN: Final = "unknown"
OTHER: Final = "other-instance"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def topic(peer: Peer) -> str:
    return create(peer.bootstrap, unique("raw"), 2)


@pytest.fixture
def new(peer: Peer, topic: str) -> Iterator[Callable[[str], GroupSetup]]:
    with ExitStack() as opened:
        yield lambda state: new_setup(peer.bootstrap, topic, state, opened)


def beat(s: GroupSetup) -> Message:
    return heartbeat(s.group, s.generation, s.member)


def beat_ahead(s: GroupSetup) -> Message:
    return heartbeat(s.group, s.generation + 1, s.member)


def beat_behind(s: GroupSetup) -> Message:
    return heartbeat(s.group, s.generation - 1, s.member)


def beat_of_unknown(s: GroupSetup) -> Message:
    return heartbeat(s.group, s.generation, UNKNOWN)


def beat_of(instance: str, member: str | None = None) -> Request:
    return lambda s: heartbeat(s.group, s.generation, member or s.member, instance)


def synced(s: GroupSetup) -> Message:
    return sync(s.group, s.generation, s.member, {s.member: b"a"})


def sync_ahead(s: GroupSetup) -> Message:
    return sync(s.group, s.generation + 1, s.member)


def sync_behind(s: GroupSetup) -> Message:
    return sync(s.group, s.generation - 1, s.member)


def sync_of_unknown(s: GroupSetup) -> Message:
    return sync(s.group, s.generation, UNKNOWN)


def sync_with(**options: Any) -> Request:
    return lambda s: sync(s.group, s.generation, s.member, **options)


def join_of(member: str = "", **options: Any) -> Request:
    return lambda s: join(s.group, member, **options)


def join_again(**options: Any) -> Request:
    return lambda s: join(s.group, s.member, **options)


def leave_of(*members: tuple[str, str | None]) -> Request:
    return lambda s: leave(s.group, *members)


def left(s: GroupSetup) -> Message:
    return leave(s.group, (s.member, None))


def committed(s: GroupSetup) -> Message:
    return commit(s.group, s.generation, s.member, s.topic, {0: 5})


def commit_ahead(s: GroupSetup) -> Message:
    return commit(s.group, s.generation + 1, s.member, s.topic, {0: 5})


def commit_behind(s: GroupSetup) -> Message:
    return commit(s.group, s.generation - 1, s.member, s.topic, {0: 5})


def commit_of_unknown(s: GroupSetup) -> Message:
    return commit(s.group, s.generation, UNKNOWN, s.topic, {0: 5})


def commit_without_member(s: GroupSetup) -> Message:
    return commit(s.group, -1, "", s.topic, {0: 5})


def commit_of(instance: str, member: str | None = None) -> Request:
    return lambda s: commit(
        s.group, s.generation, member or s.member, s.topic, {0: 5}, instance=instance
    )


def codes(response: Any) -> list[E]:
    """Return the error codes of a response: its own, and those of members or partitions."""
    found = [response.error_code] if hasattr(response, "error_code") else []
    found += [one.error_code for one in getattr(response, "members", ()) if _has_code(one)]
    topics = getattr(response, "topics", ())
    found += [one.error_code for topic in topics for one in topic.partitions]
    return [E(code) for code in found]


def _has_code(row: Any) -> bool:
    return hasattr(row, "error_code")


ROWS: Final[list[tuple[str, str, Request, list[E]]]] = [
    # Heartbeat
    ("absent", "heartbeat", beat_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    ("offsets", "heartbeat", beat_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    ("emptied", "heartbeat", beat, [E.UNKNOWN_MEMBER_ID]),
    ("pending", "heartbeat", beat, [E.UNKNOWN_MEMBER_ID]),
    ("completing", "heartbeat", beat, [E.NONE]),
    ("completing", "heartbeat ahead", beat_ahead, [E.ILLEGAL_GENERATION]),
    ("stable", "heartbeat", beat, [E.NONE]),
    ("stable", "heartbeat ahead", beat_ahead, [E.ILLEGAL_GENERATION]),
    ("stable", "heartbeat behind", beat_behind, [E.ILLEGAL_GENERATION]),
    ("stable", "heartbeat of unknown", beat_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    ("stable", "heartbeat of an instance", beat_of(INSTANCE), [E.UNKNOWN_MEMBER_ID]),
    ("preparing", "heartbeat", beat, [E.REBALANCE_IN_PROGRESS]),
    ("preparing", "heartbeat ahead", beat_ahead, [E.ILLEGAL_GENERATION]),
    ("static", "heartbeat", beat_of(INSTANCE), [E.NONE]),
    ("static", "heartbeat without instance", beat, [E.NONE]),
    ("static", "heartbeat of another", beat_of(INSTANCE, UNKNOWN), [E.FENCED_INSTANCE_ID]),
    ("static", "heartbeat of other instance", beat_of(OTHER), [E.UNKNOWN_MEMBER_ID]),
    # SyncGroup
    ("absent", "sync", sync_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    ("emptied", "sync", synced, [E.UNKNOWN_MEMBER_ID]),
    ("pending", "sync", synced, [E.UNKNOWN_MEMBER_ID]),
    ("completing", "sync", synced, [E.NONE]),
    ("completing", "sync ahead", sync_ahead, [E.ILLEGAL_GENERATION]),
    ("completing", "sync behind", sync_behind, [E.ILLEGAL_GENERATION]),
    ("completing", "sync of unknown", sync_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    (
        "completing", "sync of a protocol", sync_with(protocol="roundrobin"),
        [E.INCONSISTENT_GROUP_PROTOCOL],
    ),
    (
        "completing", "sync of a protocol type", sync_with(protocol_type="connect"),
        [E.INCONSISTENT_GROUP_PROTOCOL],
    ),
    ("completing", "sync of no type", sync_with(protocol_type=None, protocol=None),
     [E.INCONSISTENT_GROUP_PROTOCOL]),
    ("stable", "sync", synced, [E.NONE]),
    ("stable", "sync ahead", sync_ahead, [E.ILLEGAL_GENERATION]),
    ("stable", "sync of unknown", sync_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    ("preparing", "sync", synced, [E.REBALANCE_IN_PROGRESS]),
    ("preparing", "sync ahead", sync_ahead, [E.ILLEGAL_GENERATION]),
    ("static", "sync of another", lambda s: sync(s.group, s.generation, UNKNOWN, instance=INSTANCE),
     [E.FENCED_INSTANCE_ID]),
    # JoinGroup
    ("absent", "join of unknown", join_of(UNKNOWN), [E.UNKNOWN_MEMBER_ID]),
    ("absent", "join", join_of(), [E.MEMBER_ID_REQUIRED]),
    ("absent", "join of an instance", join_of(instance=INSTANCE), [E.NONE]),
    ("absent", "join of no group", lambda s: join(""), [E.INVALID_GROUP_ID]),
    ("absent", "join too short", join_of(session_ms=1), [E.INVALID_SESSION_TIMEOUT]),
    ("absent", "join too long", join_of(session_ms=2**31 - 1), [E.INVALID_SESSION_TIMEOUT]),
    ("absent", "join without protocols", join_of(protocols={}), [E.INCONSISTENT_GROUP_PROTOCOL]),
    ("absent", "join without type", join_of(protocol_type=""), [E.INCONSISTENT_GROUP_PROTOCOL]),
    ("offsets", "join of unknown", join_of(UNKNOWN), [E.UNKNOWN_MEMBER_ID]),
    ("offsets", "join", join_of(), [E.MEMBER_ID_REQUIRED]),
    ("offsets", "join of a type", join_of(protocol_type="connect"), [E.MEMBER_ID_REQUIRED]),
    ("emptied", "join of the former", join_again(), [E.UNKNOWN_MEMBER_ID]),
    ("emptied", "join of a type", join_of(protocol_type="connect"), [E.MEMBER_ID_REQUIRED]),
    ("pending", "join", join_again(), [E.NONE]),
    ("completing", "join again", join_again(), [E.NONE]),
    ("stable", "join of unknown", join_of(UNKNOWN), [E.UNKNOWN_MEMBER_ID]),
    ("stable", "join of the leader", join_again(), [E.NONE]),
    ("stable", "join of another", join_of(), [E.MEMBER_ID_REQUIRED]),
    ("stable", "join of a type", join_of(protocol_type="connect"),
     [E.INCONSISTENT_GROUP_PROTOCOL]),
    ("stable", "join of a protocol", join_of(protocols={"roundrobin": subscription()}),
     [E.INCONSISTENT_GROUP_PROTOCOL]),
    ("stable", "join again of a protocol", join_again(protocols={"roundrobin": subscription()}),
     [E.INCONSISTENT_GROUP_PROTOCOL]),
    ("preparing", "join of unknown", join_of(UNKNOWN), [E.UNKNOWN_MEMBER_ID]),
    ("preparing", "join again", join_again(), [E.NONE]),
    ("static", "join of another", join_of(UNKNOWN, instance=INSTANCE), [E.FENCED_INSTANCE_ID]),
    ("static", "join of unknown elsewhere", join_of(UNKNOWN, instance=OTHER),
     [E.UNKNOWN_MEMBER_ID]),
    ("static", "join of the instance", join_of(instance=INSTANCE), [E.NONE]),
    # LeaveGroup
    ("absent", "leave", leave_of((UNKNOWN, None)), [E.NONE, E.UNKNOWN_MEMBER_ID]),
    ("emptied", "leave", left, [E.NONE, E.UNKNOWN_MEMBER_ID]),
    ("pending", "leave", left, [E.NONE, E.NONE]),
    ("completing", "leave", left, [E.NONE, E.NONE]),
    ("stable", "leave", left, [E.NONE, E.NONE]),
    ("stable", "leave of unknown", leave_of((UNKNOWN, None)), [E.NONE, E.UNKNOWN_MEMBER_ID]),
    ("stable", "leave of none", leave_of(), [E.NONE]),
    ("stable", "leave of two", lambda s: leave(s.group, (UNKNOWN, None), (s.member, None)),
     [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE]),
    ("preparing", "leave", left, [E.NONE, E.NONE]),
    ("static", "leave of the instance", leave_of(("", INSTANCE)), [E.NONE, E.NONE]),
    ("static", "leave of another", leave_of((UNKNOWN, INSTANCE)),
     [E.NONE, E.FENCED_INSTANCE_ID]),
    ("static", "leave of other instance", leave_of(("", OTHER)),
     [E.NONE, E.UNKNOWN_MEMBER_ID]),
    # OffsetCommit
    ("absent", "commit without member", commit_without_member, [E.NONE]),
    ("absent", "commit of a generation", lambda s: commit(s.group, 1, UNKNOWN, s.topic, {0: 5}),
     [E.GROUP_ID_NOT_FOUND]),
    ("offsets", "commit without member", commit_without_member, [E.NONE]),
    ("offsets", "commit of unknown", lambda s: commit(s.group, 1, UNKNOWN, s.topic, {0: 5}),
     [E.UNKNOWN_MEMBER_ID]),
    ("emptied", "commit without member", commit_without_member, [E.NONE]),
    ("emptied", "commit of the former", committed, [E.UNKNOWN_MEMBER_ID]),
    ("pending", "commit without member", commit_without_member, [E.NONE]),
    ("completing", "commit", committed, [E.REBALANCE_IN_PROGRESS]),
    ("completing", "commit ahead", commit_ahead, [E.ILLEGAL_GENERATION]),
    ("stable", "commit", committed, [E.NONE]),
    ("stable", "commit ahead", commit_ahead, [E.ILLEGAL_GENERATION]),
    ("stable", "commit behind", commit_behind, [E.ILLEGAL_GENERATION]),
    ("stable", "commit of unknown", commit_of_unknown, [E.UNKNOWN_MEMBER_ID]),
    ("stable", "commit without member", commit_without_member, [E.UNKNOWN_MEMBER_ID]),
    ("preparing", "commit", committed, [E.NONE]),
    ("preparing", "commit behind", commit_behind, [E.ILLEGAL_GENERATION]),
    ("static", "commit", commit_of(INSTANCE), [E.NONE]),
    ("static", "commit of another", commit_of(INSTANCE, UNKNOWN), [E.FENCED_INSTANCE_ID]),
    ("static", "commit of other instance", commit_of(OTHER), [E.UNKNOWN_MEMBER_ID]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "request_of", "expected"),
    [pytest.param(state, of, codes, id=f"{state}: {name}") for state, name, of, codes in ROWS],
)
def test_each_request_is_answered_in_each_state(
    new: Callable[[str], GroupSetup], state: str, request_of: Request, expected: list[E]
) -> None:
    setup = new(state)
    assert codes(setup.call(request_of(setup))) == expected
