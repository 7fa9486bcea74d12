"""Adapter of pysyncobj 0.3.17, with every access to its private parts.

The library decides elections and commits: terms, votes, matching indices, the commit rule, the
step-down of a leader without a majority. This adapter provides its log (`log.py`), its transport
and its clock. The library never opens a file or a socket here, starts no thread, and pickles no
object. All other functions of it are disabled.

    name                                    change                                           reason
    --------------------------------------  -----------------------------------------------  ---
    module pysyncobj.encryptor              replaced: no passwords                           k
    syncobj.monotonicTime                   replaced: time of the voter that runs now        a
    syncobj.createJournal                   replaced: returns the log object unchanged       b
    syncobj.createPoller                    replaced: polls nothing                          c
    SyncObj._checkCommandsToApply           overridden: does nothing                         d
    SyncObj.__applyLogEntries               overridden: does nothing                         e
    SyncObj.__sendAppendEntries             overridden: does nothing                         f
    SyncObj.__tryLogCompaction              overridden: does nothing                         g
    SyncObj.__loadDumpFile                  overridden: raises                               g
    SyncObj.__generateRaftTimeout           overridden: infinite                             h
    SyncObj.__serializer                    removed                                          g
    SyncObj.__raftElectionDeadline          written: start an election now                   h
    SyncObj.__setCurrentTerm, __setState,   called, written: step down to a later term,      i
      __raftLeader                          or resign
    SyncObj.__raftCommitIndex               written: a snapshot was installed, or entries    j
                                            that could not be written were dropped
    SyncObj.__onMessageReceived,            called through the transport's callbacks, their
      __onNodeConnected, -Disconnected      intended use

    a  several voters may run in one process, each with its own clock
    b  its own journal is not synced, not checked, and not crash-atomic
    c  the driver (`voter.py`) waits instead
    d  it forwards commands to the leader and reports unknown outcomes; `core.py` appends instead
    e  applying may wait, and a failure must not be repeated or ignored; `voter.py` has a task
    f  it has no flow control, sends only once per period, and pickles large data
    g  `metaquorum/quorum/storage/snapshot.py` writes snapshots; those of the library are pickled,
    and
       installing one deletes acknowledged entries
    h  elections need a pre-vote first, and also start when the leader's connection closes
    i  its answers carry no term, so it never learns of a later term from an answer
    j  these changes happen outside of the library
    k  unused, and it imports a large package if that is installed
"""

import math
import sys
from types import ModuleType
from typing import Any, Final, Protocol

from metaquorum.quorum.raft.log import RaftLog, journal_index, library_index
from metaquorum.quorum.raft.timings import RaftTimings

_no_encryptor: Any = ModuleType("pysyncobj.encryptor")
_no_encryptor.HAS_CRYPTO, _no_encryptor.getEncryptor = False, None
sys.modules.setdefault("pysyncobj.encryptor", _no_encryptor)

from pysyncobj import syncobj  # noqa: E402
from pysyncobj.node import Node  # noqa: E402
from pysyncobj.transport import Transport  # noqa: E402
from pysyncobj.version import VERSION  # noqa: E402

if VERSION != "0.3.17":
    raise ImportError(
        f"pysyncobj {VERSION} is installed; metaquorum.quorum.raft works only with version 0.3.17"
    )

_FOLLOWER: Final = 0


class _Now:
    """Monotonic time of the voter whose library is called now."""

    seconds = 0.0


def _monotonic() -> float:
    return _Now.seconds


class _NoPoller:
    def poll(self, timeout: float) -> None:
        pass


def _as_it_is(journal: RaftLog) -> RaftLog:
    return journal


def _no_poller(kind: str) -> _NoPoller:
    return _NoPoller()


syncobj.monotonicTime = _monotonic
syncobj.createJournal = _as_it_is
syncobj.createPoller = _no_poller


class LibraryOutput(Protocol):
    """Messages that the library sends to other voters."""

    def request_vote(self, voter_id: int) -> None: ...

    def grant_vote(self, voter_id: int) -> None: ...

    def acknowledge(self, voter_id: int, next_index: int) -> None:
        """Acknowledge to the leader that all its entries before `next_index` are in the log."""


class _Transport(Transport):  # type: ignore[misc]
    """Transport that converts the library's dictionaries to calls of `LibraryOutput`."""

    def __init__(self, output: LibraryOutput) -> None:
        super().__init__(None, None, None)
        self._output = output

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        kind = message["type"]
        if kind == "request_vote":
            self._output.request_vote(node.id)
        elif kind == "response_vote":
            self._output.grant_vote(node.id)
        else:
            assert kind == "next_node_idx", kind
            assert message["success"], "the guard passed on an append that does not match the log"
            self._output.acknowledge(node.id, journal_index(message["next_node_idx"]))
        return True

    def connected(self, node: Any) -> None:
        self._onNodeConnected(node)

    def disconnected(self, node: Any) -> None:
        self._onNodeDisconnected(node)

    def received(self, node: Any, message: dict[str, Any]) -> None:
        self._onMessageReceived(node, message)


class _SyncObj(syncobj.SyncObj):  # type: ignore[misc]
    def _checkCommandsToApply(self) -> None:  # noqa: N802
        pass

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        return False

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        pass

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        pass

    def _SyncObj__loadDumpFile(self, clear_journal: bool) -> None:  # noqa: N802
        raise AssertionError("the library tried to load its own snapshot")

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return math.inf


class Library:
    """Library as the guard (`core.py`) uses it: typed, with indices of the journal, without I/O.

    `set_time` must be called before every other call.
    """

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        log: RaftLog,
        timings: RaftTimings,
        output: LibraryOutput,
    ) -> None:
        conf = syncobj.SyncObjConf(
            autoTick=False,
            journalFile=log,
            fullDumpFile=None,
            useFork=False,
            dynamicMembershipChange=False,
            leaderFallbackTimeout=timings.fallback_s,
            # Unused, but the library checks them against each other.
            appendEntriesPeriod=min(timings.heartbeat_s, timings.fallback_s / 2),
            raftMinTimeout=1e6,
            raftMaxTimeout=2e6,
            connectionTimeout=3e6,
        )
        self._nodes = {each: Node(each) for each in voters}
        others = [self._nodes[each] for each in voters if each != node_id]
        self._transport = _Transport(output)
        self._sync_obj = _SyncObj(self._nodes[node_id], others, conf, transport=self._transport)
        self._sync_obj._SyncObj__serializer = None

    @staticmethod
    def set_time(now: float) -> None:
        _Now.seconds = now

    @property
    def term(self) -> int:
        return int(self._sync_obj.raftCurrentTerm)

    @property
    def is_leader(self) -> bool:
        return bool(self._sync_obj._isLeader())

    @property
    def leader_id(self) -> int | None:
        leader = self._sync_obj._getLeader()
        return None if leader is None else int(leader.id)

    @property
    def commit_index(self) -> int:
        return journal_index(self._sync_obj.raftCommitIndex)

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._sync_obj._SyncObj__raftCommitIndex = library_index(index)

    def tick(self) -> None:
        """Advance the commit index; a leader without a majority resigns."""
        self._sync_obj.doTick(0)

    def campaign(self) -> None:
        """Become a candidate in the next term, or the leader if this is the only voter."""
        self._sync_obj._SyncObj__raftElectionDeadline = -math.inf
        self.tick()

    def step_down(self, term: int) -> None:
        """Become a follower without a leader, in `term` if it is later."""
        if term > self.term:
            self._sync_obj._SyncObj__setCurrentTerm(term, None)
        self._sync_obj._SyncObj__setState(_FOLLOWER)
        self._sync_obj._SyncObj__raftLeader = None

    def connected(self, voter_id: int) -> None:
        self._transport.connected(self._nodes[voter_id])

    def disconnected(self, voter_id: int) -> None:
        self._transport.disconnected(self._nodes[voter_id])

    def vote_requested(self, voter_id: int, term: int, last_index: int, last_term: int) -> None:
        self._receive(
            voter_id,
            {
                "type": "request_vote",
                "term": term,
                "last_log_index": library_index(last_index),
                "last_log_term": last_term,
            },
        )

    def voted(self, voter_id: int, term: int) -> None:
        """Count a vote. Must be called at most once for each voter and term."""
        self._receive(voter_id, {"type": "response_vote", "term": term})

    def append(
        self,
        leader_id: int,
        term: int,
        previous_index: int,
        previous_term: int,
        commit_index: int,
        entries: list[tuple[int, bytes]],
    ) -> None:
        """Append the entries after the previous entry, truncate the rest, and acknowledge.

        The previous entry must be in the log. It is the last entry of the log unless entries after
        it must be truncated.
        """
        first = library_index(previous_index) + 1
        rows = [(payload, first + number, term) for number, (term, payload) in enumerate(entries)]
        self._receive(
            leader_id,
            {
                "type": "append_entries",
                "term": term,
                "commit_index": library_index(commit_index),
                "entries": rows,
                "prevLogIdx": library_index(previous_index),
                "prevLogTerm": previous_term,
            },
        )

    def heard(self, leader_id: int, term: int) -> None:
        """Follow that leader, without assuming anything about its log."""
        self._receive(
            leader_id,
            {"type": "append_entries", "term": term, "commit_index": 0, "serialized": None},
        )

    def answered(self, voter_id: int, matched_next_index: int | None) -> None:
        """Record an answer in this leader's term.

        All entries before `matched_next_index` are durable on the voter; None: it is only alive.
        """
        is_match = matched_next_index is not None
        self._receive(
            voter_id,
            {
                "type": "next_node_idx",
                "reset": False,
                "success": is_match,
                "next_node_idx": library_index(matched_next_index or 0),
            },
        )

    def _receive(self, voter_id: int, message: dict[str, Any]) -> None:
        self._transport.received(self._nodes[voter_id], message)
