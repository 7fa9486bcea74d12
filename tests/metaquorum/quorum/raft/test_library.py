"""The parts of pysyncobj that run in a node, and the disabled parts."""

import os
import subprocess
import sys
import threading
from random import Random

import pysyncobj.syncobj as syncobj
import pysyncobj.version
import pytest

from metaquorum.quorum.raft import library
from metaquorum.quorum.raft.core import RaftCore
from metaquorum.quorum.raft.log import RaftLog
from metaquorum.quorum.raft.timings import RaftTimings
from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import LogPosition
from tests.metaquorum.quorum.storage.crash_disk import CrashDisk
from tests.nodes import wait_until

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


def make_core(node_id: int = 1, voters: tuple[int, ...] = (1, 2, 3)) -> RaftCore:
    journal = Journal(CrashDisk(), "/data/metadata", CLUSTER)
    journal.open()
    log = RaftLog(journal, LogPosition(0, 0))
    return RaftCore(node_id, voters, log, RaftTimings(), Random(node_id), 0.0)


def test_the_version_is_the_one_whose_insides_are_known() -> None:
    assert pysyncobj.version.VERSION == "0.3.17"


def test_every_private_name_that_is_overridden_or_used_is_there() -> None:
    for name in (
        "_checkCommandsToApply",
        "_SyncObj__applyLogEntries",
        "_SyncObj__sendAppendEntries",
        "_SyncObj__tryLogCompaction",
        "_SyncObj__loadDumpFile",
        "_SyncObj__generateRaftTimeout",
        "_SyncObj__setCurrentTerm",
        "_SyncObj__setState",
    ):
        assert callable(getattr(syncobj.SyncObj, name))
    inside = vars(make_core()._library._sync_obj)
    for name in ("raftElectionDeadline", "raftLeader", "raftCommitIndex", "serializer"):
        assert f"_SyncObj__{name}" in inside


def test_a_voter_starts_no_thread_and_opens_no_file() -> None:
    def held() -> tuple[set[threading.Thread], list[str]]:
        return set(threading.enumerate()), os.listdir("/proc/self/fd")

    def holds_nothing() -> bool:
        """Return whether a voter holds no thread and no file.

        Also False if threads of earlier tests start or end at the same time.
        """
        before = held()
        core = make_core(voters=(1,))
        core.tick(1.0)
        core.tick(1.0)
        assert core.is_leader
        return held() == before

    wait_until(holds_nothing)


@pytest.mark.slow
def test_importing_it_starts_nothing_and_leaves_signals_alone() -> None:
    program = (
        "import signal, threading, sys\n"
        "before = [signal.getsignal(each) for each in signal.valid_signals()]\n"
        "import metaquorum.quorum.raft.voter\n"
        "assert before == [signal.getsignal(each) for each in signal.valid_signals()]\n"
        "assert threading.active_count() == 1\n"
        "assert 'cryptography' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_voters_in_one_process_each_have_their_own_time() -> None:
    early, late = make_core(1), make_core(2)
    late.tick(1_000_000.0)
    early.tick(0.01)
    assert library._Now.seconds == 0.01


def test_a_leader_of_one_commits_at_once_and_needs_no_clock() -> None:
    core = make_core(voters=(1,))
    core.tick(5.0)
    assert core.is_leader
    assert core.term == 1
    core.append(b"batch")
    core.tick(5.0)
    assert core.commit_index == 2
    core.replicate(5.0)
    assert core.deadline == float("inf")
