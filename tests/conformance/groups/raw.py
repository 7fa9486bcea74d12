"""Single requests to a group's coordinator, in a chosen version, by the tables of
`metaquorum.wire.messages`.

A connection sends one request at a time. A request that waits (JoinGroup, SyncGroup) is sent with
`Connection.send`, and its response is read later with `Connection.answer`.
"""

import importlib
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from metaquorum.wire.messages.find_coordinator import FindCoordinatorRequest
from metaquorum.wire.messages.heartbeat import HeartbeatRequest
from metaquorum.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from metaquorum.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from metaquorum.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from metaquorum.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.codec import decoder, encoder
from metaquorum.wire.schema.message import Message
from tests.nodes import PATIENCE_S, wait_until

CLIENT_ID: Final = "raw"
SESSION_MS: Final = 20_000
# Seconds that a response may take. A group that does not answer fails its test within this time.
LIMIT_S: Final = PATIENCE_S
# Versions that name topics, and not topic ids.
NAMED: Final = {"OffsetCommitRequest": 9, "OffsetFetchRequest": 9}


def subscription(*topics: str) -> bytes:
    """Return the metadata of a member of the protocol type "consumer", in version 0.

    Apache Kafka 4.3.1 never completes a rebalance if a member's metadata is malformed.
    """
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


PROTOCOL: Final = {"range": subscription("subscribed")}


def newest(request: Message) -> int:
    """Return the newest version of the request that names topics."""
    return NAMED.get(type(request).__name__, request.VERSIONS.last)


def response_type(request: Message) -> type[Message]:
    """Return the class of the response, which is in the module of the request."""
    cls = type(request)
    found = getattr(importlib.import_module(cls.__module__), cls.__name__[:-7] + "Response")
    assert isinstance(found, type)
    return found


class Connection:
    """A blocking connection to one node."""

    def __init__(self, address: str, limit_s: float = LIMIT_S) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), limit_s)
        self._sent: tuple[type[Message], int, bool] | None = None
        self._correlation_id = 0

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, request: Message, version: int | None = None) -> Any:
        self.send(request, version)
        return self.answer()

    def send(self, request: Message, version: int | None = None) -> None:
        version = newest(request) if version is None else version
        flexible = version >= request.FLEXIBLE.first
        self._correlation_id += 1
        start = struct.pack(">hhih", request.API, version, self._correlation_id, len(CLIENT_ID))
        head = start + CLIENT_ID.encode() + b"\0" * flexible
        body = encoder(type(request), version)(request)
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        self._sent = response_type(request), version, flexible

    def answer(self) -> Any:
        """Return the response to the request that was sent."""
        assert self._sent is not None
        cls, version, flexible = self._sent
        data = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        assert struct.unpack_from(">i", data)[0] == self._correlation_id
        message, end = decoder(cls, version)(memoryview(data), 5 if flexible else 4)
        assert end == len(data), "bytes after the response"
        return message

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the node closed the connection")
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


def coordinator_of(bootstrap: str, group: str) -> str:
    """Wait until the group has a coordinator that has loaded it; return its address."""

    def ready() -> str | None:
        return next(
            filter(None, (_coordinator(each, group) for each in bootstrap.split(","))), None
        )

    return wait_until(ready, LIMIT_S, what=f"a coordinator of {group}") or ""


def _coordinator(address: str, group: str) -> str | None:
    """Return the coordinator by this node; None if it is down, loading or not known."""
    with suppress(OSError, EOFError):
        with Connection(address) as connection:
            row = connection.call(FindCoordinatorRequest(coordinator_keys=[group])).coordinators[0]
        if row.error_code:
            return None
        found = f"{row.host}:{row.port}"
        with Connection(found) as connection:
            code = connection.call(heartbeat(group, 1, "unknown")).error_code
        return None if code in LOADING else found
    return None


# Errors of a heartbeat of an unknown member before the group is loaded; Kafka answers NONE, too.
LOADING: Final = (
    ErrorCode.NONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: Mapping[str, bytes] = PROTOCOL,
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = SESSION_MS,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols.items()],
    )


def sync(
    group: str,
    generation: int,
    member: str,
    assignments: Mapping[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol: str | None = "range",
) -> SyncGroupRequest:
    given = [
        SyncGroupRequestAssignment(member_id=name, assignment=data)
        for name, data in (assignments or {}).items()
    ]
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol,
        assignments=given,
    )


def heartbeat(
    group: str, generation: int, member: str, instance: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
    )


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    rows = [MemberIdentity(member_id=name, group_instance_id=at) for name, at in members]
    return LeaveGroupRequest(group_id=group, members=rows)


def commit(
    group: str,
    generation: int,
    member: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    instance: str | None = None,
    metadata: str | None = "",
) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )
        for index, offset in offsets.items()
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)],
    )
