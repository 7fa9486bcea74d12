"""Processes on this machine, and requests to the nodes among them."""

import errno
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from metaquorum.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from metaquorum.wire.messages.metadata import MetadataRequest
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.schema.message import Message

HOST: Final = "127.0.0.1"
PROBE_TIMEOUT_S: Final = 1.0
POLL_S: Final = 0.01
_EXEC_POLL_S: Final = 0.0002
MAX_ANSWER_BYTES: Final = 64 << 20
_PROC: Final = Path("/proc")
_METADATA_TOPIC: Final = "__cluster_metadata"


class Voter(NamedTuple):
    heard_ms: int  # last fetch seen by the active controller, wall clock; -1: none
    end_offset: int


class QuorumAnswer(NamedTuple):
    """State of the voters, according to the active controller."""

    leader: int
    end_offset: int
    voters: dict[int, Voter]

    def is_caught_up(self, node: int, since_ms: float) -> bool:
        """Return whether the voter has all committed entries, by a fetch since `since_ms`."""
        voter = self.voters.get(node)
        return (
            voter is not None and voter.heard_ms >= since_ms and voter.end_offset >= self.end_offset
        )


def _ask(port: int, api: ApiKey, version: int, message: Message) -> Any:
    """Send a request and return the response. Raises OSError or WireError on failure."""
    with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as sock:
        sock.sendall(encode_request(api, version, 1, "mq-server cluster", message))
        with sock.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            if not 0 < size <= MAX_ANSWER_BYTES:
                raise WireError(f"size: {size}")
            reply = stream.read(size)
    return decode_response(api, version, memoryview(reply))[1]


def known_brokers(port: int, cluster_id: str) -> int:
    """Return how many brokers the node at this port knows; 0 if it is not of this cluster."""
    try:
        found = _ask(port, ApiKey.METADATA, 4, MetadataRequest(topics=[]))
    except (OSError, WireError, struct.error):
        return 0
    return len(found.brokers) if found.cluster_id == cluster_id else 0


def under_replicated(port: int) -> int | None:
    """Return the number of under-replicated partitions; None if the node does not answer."""
    try:
        found = _ask(port, ApiKey.METADATA, 4, MetadataRequest(topics=None))
    except (OSError, WireError, struct.error):
        return None
    partitions = [partition for topic in found.topics for partition in topic.partitions]
    return sum(len(each.isr_nodes) < len(each.replica_nodes) for each in partitions)


def quorum(port: int) -> QuorumAnswer | None:
    """Return the quorum according to the node at this port; None if it cannot provide it."""
    asked = DescribeQuorumTopic(
        topic_name=_METADATA_TOPIC, partitions=[DescribeQuorumPartition(partition_index=0)]
    )
    try:
        found = _ask(port, ApiKey.DESCRIBE_QUORUM, 1, DescribeQuorumRequest(topics=[asked]))
    except (OSError, WireError, struct.error):
        return None
    if found.error_code or not found.topics:
        return None
    (partition,) = found.topics[0].partitions
    voters = {
        voter.replica_id: Voter(voter.last_fetch_timestamp, voter.log_end_offset)
        for voter in partition.current_voters
    }
    return QuorumAnswer(partition.leader_id, partition.high_watermark, voters)


def is_free(port: int) -> bool:
    """Return whether a node can listen on the port."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def is_listened_on(port: int) -> bool:
    """Return whether a process accepts connections on the port.

    A port that is neither free nor listened on has connections in TIME-WAIT, for a minute at most.
    """
    with socket.socket() as sock:
        sock.settimeout(PROBE_TIMEOUT_S)
        return sock.connect_ex((HOST, port)) != errno.ECONNREFUSED


def started(
    command: list[str], environment: Mapping[str, str], log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start a process that writes to `log`, in a session of its own, with a visible command line.

    Linux lets the parent continue before it sets the command line, which is empty until then.
    """
    process = subprocess.Popen(  # noqa: S603
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    wait(
        lambda: bool(command_line(process.pid)) or process.poll() is not None,
        PROBE_TIMEOUT_S,
        _EXEC_POLL_S,
    )
    return process


def command_line(pid: int) -> str:
    """Return the command line of a process; empty if it does not run or is a zombie."""
    if _PROC.joinpath("self").exists():
        try:
            return os.fsdecode(_PROC.joinpath(str(pid), "cmdline").read_bytes())
        except OSError:
            return ""
    ps = subprocess.run(  # noqa: S603
        ["ps", "-ww", "-p", str(pid), "-o", "command="],  # noqa: S607
        capture_output=True,
        check=False,
    )
    return os.fsdecode(ps.stdout)


def runs(pid: int, command: list[str]) -> bool:
    """Return whether the process runs this command, with any path of the interpreter."""
    found = command_line(pid)
    if "\0" in found:
        return found.split("\0")[1:-1] == command[1:]
    return found.endswith(" " + " ".join(command[1:]))


def start_time(pid: int) -> float | None:
    """Return when a process was started, in units of this machine; None if it does not run.

    Two processes with the same id have different times.
    """
    try:
        stat = _PROC.joinpath(str(pid), "stat").read_text()
    except OSError:
        return _start_time_by_ps(pid)
    return float(stat.rpartition(")")[2].split()[19])  # clock ticks since the boot


def _start_time_by_ps(pid: int) -> float | None:
    if _PROC.joinpath("self").exists():
        return None
    ps = subprocess.run(  # noqa: S603
        ["ps", "-p", str(pid), "-o", "lstart="],  # noqa: S607
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    text = os.fsdecode(ps.stdout).strip()
    return time.mktime(time.strptime(text)) if text else None


def send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # the process has ended


def wait(condition: Callable[[], bool], timeout_s: float, poll_s: float = POLL_S) -> bool:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(poll_s)
    return True


def usage(pid: int) -> str:
    """Return CPU time and resident memory as text; empty without /proc."""
    try:
        fields = _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
        pages = int(_PROC.joinpath(str(pid), "statm").read_text().split()[1])
    except OSError:
        return ""
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    rss_mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return f"  cpu {cpu_s:.1f} s  rss {rss_mib:.0f} MiB"
