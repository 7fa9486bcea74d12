"""pysyncobj 0.3.17, and every place where its insides are reached into.

It decides who leads and what is committed: terms, votes, matching indices, the commit rule, the
step-down of a leader that nobody answers. It keeps the log through an object of ours (`log.py`),
sends through one of ours, and knows the time from us. It never opens a file or a socket here,
starts no thread, and packs or unpacks no object. Everything else of it is cut off.

    name                                    what is done                                     why
    --------------------------------------  -----------------------------------------------  ---
    module pysyncobj.encryptor              replaced: no passwords                           k
    syncobj.monotonicTime                   replaced: the time of the voter being driven     a
    syncobj.createJournal                   replaced: the log object as it is                b
    syncobj.createPoller                    replaced: nothing to poll                        c
    SyncObj._checkCommandsToApply           overridden: does nothing                         d
    SyncObj.__applyLogEntries               overridden: does nothing                         e
    SyncObj.__sendAppendEntries             overridden: does nothing                         f
    SyncObj.__tryLogCompaction              overridden: does nothing                         g
    SyncObj.__loadDumpFile                  overridden: raises                               g
    SyncObj.__generateRaftTimeout           overridden: infinite                             h
    SyncObj.__serializer                    removed                                          g
    SyncObj.__raftElectionDeadline          written: an election now                         h
    SyncObj.__setCurrentTerm, __setState,   called, written: give way to a later term,       i
      __raftLeader                          or resign
    SyncObj.__raftCommitIndex               written: a snapshot was installed; entries that  j
                                            could not be written were cut off
    SyncObj.__onMessageReceived,            through the transport's callbacks, which is
      __onNodeConnected, -Disconnected      what they are for

    a  several voters in one process, each with its own clock
    b  its own journal is not synced, not checked, and not crash-atomic
    c  our driver waits
    d  it forwards commands to the leader and reports outcomes that it does not know; ours appends
    e  applying waits, and a failure there must not be repeated or passed over; ours is a task
    f  it has no flow control, sends only every period, and pickles what is large
    g  snapshots are ours (`metaquorum/storage/snapshot.py`); its own are pickled, and installing
    one clears
       entries that were acknowledged
    h  there is a round of pre-votes before an election, and evidence beside silence
    i  it is never told of a later term by an answer, because its answers carry no term
    j  these happen outside of it
    k  unused, and it imports a large package where that is installed
"""

import math
import sys
from types import ModuleType
from typing import Any, Final, Protocol

from metaquorum.raft.log import RaftLog, journal_index, library_index
from metaquorum.raft.timings import RaftTimings

_no_encryptor: Any = ModuleType("pysyncobj.encryptor")
_no_encryptor.HAS_CRYPTO, _no_encryptor.getEncryptor = False, None
sys.modules.setdefault("pysyncobj.encryptor", _no_encryptor)

from pysyncobj import syncobj  # noqa: E402
from pysyncobj.node import Node  # noqa: E402
from pysyncobj.transport import Transport  # noqa: E402
from pysyncobj.version import VERSION  # noqa: E402

if VERSION != "0.3.17":
    raise ImportError(f"pysyncobj {VERSION}: its insides are known for 0.3.17 only")

_FOLLOWER: Final = 0


class _Now:
    """The monotonic time of the voter that is being driven."""

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
    """What the library wants said to others."""

    def request_vote(self, voter_id: int) -> None: ...

    def grant_vote(self, voter_id: int) -> None: ...

    def acknowledge(self, voter_id: int, next_index: int) -> None:
        """All entries before `next_index` are in the log, as in that leader's."""


class _Transport(Transport):  # type: ignore[misc]
    """Between the library's dictionaries and the calls of `LibraryOutput`."""

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
            assert message["success"], "an append that does not fit got through"
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
        raise AssertionError("the library would load a snapshot of its own")

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return math.inf


class Library:
    """The library as the guard (`core.py`) uses it: typed, in our indices, without I/O.

    `set_time` comes before every other call.
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
            # Unused, but checked against each other.
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
        """What is committed has been counted; a leader without a majority has resigned."""
        self._sync_obj.doTick(0)

    def campaign(self) -> None:
        """This voter is a candidate in the next term; the leader, where it is alone."""
        self._sync_obj._SyncObj__raftElectionDeadline = -math.inf
        self.tick()

    def step_down(self, term: int) -> None:
        """A follower of nobody, in `term`."""
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
        """To be told once of each voter and term."""
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
        """The entries follow on the previous one, which is in the log, in place of what did.

        The last entry of the log, unless what follows on it must go. Acknowledged.
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
        """That voter leads; nothing is known of how its log and this one compare."""
        self._receive(
            leader_id,
            {"type": "append_entries", "term": term, "commit_index": 0, "serialized": None},
        )

    def answered(self, voter_id: int, matched_next_index: int | None) -> None:
        """In this leader's term. All before that index is durable there; None: it lives."""
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
