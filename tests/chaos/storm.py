"""Faults of three nodes while clients use them, one after the other, and the invariants:

    acknowledged record       exists at its offset, once, in the order of sending
    unacknowledged record     exists at most once: the producers are idempotent
    record read               remains: the consumer never read a record that is missing later
    clients                   retry all errors themselves, and make progress after each fault
    transactions              whole or not at all, for a read_committed reader (see transfers.py)
    replicas                  have the same bytes at the end
    nodes                     stop cleanly, and no log reports a bug

One seed determines the faults, their order, durations and nodes. The order of events in the
processes is not repeatable.
"""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from metaquorum.wire.records.batches import batches
from tests.chaos import transfers
from tests.chaos.load import Load, Place, check_kept, read_all, usual_senders
from tests.chaos.machines import NUMBERS, SETTINGS, Machines
from tests.nodes import unique

PARTITIONS: Final = 6
TRANSACTION_VERSIONS: Final = (0, 1, 2)
MIN_ISR: Final = 2
SEGMENT_BYTES: Final = 1 << 20
SESSION_S: Final = SETTINGS["broker.session.timeout.ms"] / 1000
_BUG: Final = re.compile(r"Traceback|a bug:|AssertionError")


class Storm:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.machines = Machines(folder)
        self.topic = unique("chaos")
        self.load = Load(usual_senders(folder), self.topic, PARTITIONS)
        self.transfers = transfers.Transfers(folder, unique("chaos-transfers"), seed)

    def begin(self) -> None:
        self.machines.up()
        admin = AdminClient({"bootstrap.servers": self.machines.bootstrap, "log_level": 0})
        configs = {"min.insync.replicas": str(MIN_ISR), "segment.bytes": str(SEGMENT_BYTES)}
        for topic, count in (
            (self.topic, PARTITIONS),
            (self.transfers.topic, transfers.PARTITIONS),
        ):
            new = NewTopic(topic, count, len(NUMBERS), config=configs)
            admin.create_topics([new])[topic].result()
        self.load.begin(self.machines.bootstrap)
        self.transfers.begin(self.machines.bootstrap)
        self.transfers.wait_progress()

    def happen(self, name: str) -> dict[str, Any]:
        """Run the fault; wait until all replicas are in sync and each client made progress."""
        began = time.monotonic()
        what = FAULTS[name](self)
        over = time.monotonic()
        self.machines.wait_in_sync(self.topic)
        self.load.wait_progress()
        self.transfers.wait_progress()
        self._no_bugs()
        healed_s = time.monotonic() - over
        return {
            "fault": name,
            "what": what,
            "s": round(over - began, 2),
            "heal": round(healed_s, 2),
        }

    def end(self) -> dict[str, Any]:
        """Stop clients and nodes. Raises AssertionError if an invariant is violated."""
        self.load.end()
        assert not self.load.errors(), self.load.errors()[:5]
        for topic in (self.topic, self.transfers.topic):
            self.machines.wait_in_sync(topic)
        transferred = self.transfers.end()
        found = read_all(self.machines.bootstrap, self.topic, PARTITIONS)
        acknowledged = {}
        for sender in self.load.senders:
            acknowledged[sender.name] = len(sender.acknowledged)
            check_kept(sender.acknowledged, found)
            check_there(sender.somewhere, found)
        check_kept(self.load.reader.read, found)
        check_once_and_in_order(found)
        self.machines.stop()
        self._no_bugs()
        check_replicas([node.data_dir for node in self.machines.nodes.values()])
        return {"acknowledged": acknowledged, "found": len(found), "transfers": transferred}

    def remove(self) -> None:
        """End all clients and nodes, in any state."""
        self.load.abandon()
        self.transfers.abandon()
        self.machines.remove()

    def _no_bugs(self) -> None:
        for node in self.machines.nodes.values():
            assert not _BUG.search(node.errors.read_text()), node.errors

    # Nodes of the next fault

    def leader(self) -> int:
        return self.machines.leader(self.topic, self.random.randrange(PARTITIONS))

    def any(self) -> int:
        return self.random.choice(NUMBERS)

    def wait_s(self, least: float, most: float) -> float:
        seconds = self.random.uniform(least, most)
        time.sleep(seconds)
        return seconds


# Invariants


def check_there(known: dict[str, int], found: dict[Place, str]) -> None:
    """Check that records acknowledged without an offset are in their partition."""
    there = {(value, place.partition) for place, value in found.items()}
    lost = [value for value, partition in known.items() if (value, partition) not in there]
    assert not lost, f"{len(lost)} of {len(known)} lost: {lost[:5]}"


def check_once_and_in_order(found: dict[Place, str]) -> None:
    twice = [value for value, count in Counter(found.values()).items() if count > 1]
    assert not twice, f"{len(twice)} records exist more than once: {twice[:5]}"
    last: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    for place in sorted(found):
        producer, _, number = found[place].partition(".")
        key = place.partition, producer
        assert int(number) > last[key], f"{place}: {number} comes after {last[key]}"
        last[key] = int(number)


def check_replicas(data_dirs: Iterable[Path]) -> None:
    """Check that all replicas of each partition have the same batches."""
    logs = [
        {path.name: replica(path) for path in folder.iterdir() if path.name.startswith("chaos-")}
        for folder in data_dirs
    ]
    assert logs[0]
    for name, log in logs[0].items():
        for other in logs[1:]:
            assert log == other[name], f"replicas of {name} differ"


def replica(folder: Path) -> list[bytes]:
    return [
        bytes(memoryview(data)[position : position + header.batch_bytes])
        for path in sorted(folder.glob("*.log"))
        for data in [path.read_bytes()]
        for position, header in batches(memoryview(data))
    ]


# Faults


def kill_leader(storm: Storm) -> str:
    number = storm.leader()
    storm.machines.crash(number)
    storm.wait_s(0.2, 1.5)
    storm.machines.up(number)
    return f"node {number}"


def kill_leader_and_controller(storm: Storm) -> str:
    """Kill the active controller, which also leads a partition, as each node does."""
    number = storm.machines.quorum_leader()
    storm.machines.crash(number)
    storm.wait_s(0.2, 1.5)
    storm.machines.up(number)
    return f"node {number}"


def kill_two(storm: Storm) -> str:
    """Kill two nodes: the quorum has no majority, and each partition is under min ISR."""
    numbers = storm.random.sample(NUMBERS, 2)
    for number in numbers:
        storm.machines.crash(number)
    storm.wait_s(0.2, 1)
    storm.machines.up(*numbers)
    return f"nodes {numbers}"


def kill_all(storm: Storm) -> str:
    for number in storm.random.sample(NUMBERS, len(NUMBERS)):
        storm.machines.crash(number)
    storm.wait_s(0, 0.5)
    storm.machines.up()
    return "all nodes"


def kill_again_while_it_starts(storm: Storm) -> str:
    """Kill a leader, and kill it again with another node before it is back in sync."""
    number = storm.leader()
    storm.machines.crash(number)
    storm.wait_s(0, 0.3)
    storm.machines.up(number)
    storm.machines.crash(number)
    other = number % len(NUMBERS) + 1
    storm.machines.crash(other)
    storm.machines.up(number, other)
    return f"node {number}, then {other}"


def pause(storm: Storm) -> str:
    """Pause a node for less or more time than its session with the controller lasts."""
    number = storm.machines.quorum_leader() if storm.random.random() < 0.4 else storm.leader()
    storm.machines.pause(number)
    seconds = storm.wait_s(0.3 * SESSION_S, 1.6 * SESSION_S)
    storm.machines.resume(number)
    return f"node {number} for {seconds:.1f} s"


def stop(storm: Storm) -> str:
    number = storm.leader()
    storm.machines.leave(number)
    storm.machines.up(number)
    return f"node {number}"


def roll(storm: Storm) -> str:
    order = storm.random.sample(NUMBERS, len(NUMBERS))
    for number in order:
        storm.machines.leave(number)
        storm.machines.up(number)
        storm.machines.wait_in_sync(storm.topic)
    return f"nodes {order}"


def cut(storm: Storm) -> str:
    """Isolate a node: requests to it and to other controllers fail, its fetches succeed."""
    number = storm.machines.quorum_leader() if storm.random.random() < 0.4 else storm.any()
    links, reset = storm.machines.links_of(number), storm.random.random() < 0.5
    for link in links:
        link.cut()
    seconds = storm.wait_s(0.3 * SESSION_S, 1.6 * SESSION_S)
    for link in links:
        link.heal(reset=reset)
    return f"node {number} for {seconds:.1f} s{', connections reset' if reset else ''}"


def cut_two_controllers(storm: Storm) -> str:
    """Isolate two controllers from each other; the third reaches both."""
    one, other = storm.random.sample(NUMBERS, 2)
    links = [storm.machines.quorum_links[pair] for pair in ((one, other), (other, one))]
    for link in links:
        link.cut()
    seconds = storm.wait_s(0.3 * SESSION_S, 1.6 * SESSION_S)
    for link in links:
        link.heal(reset=storm.random.random() < 0.5)
    return f"nodes {one} and {other} for {seconds:.1f} s"


def fill_disk(storm: Storm) -> str:
    if not storm.machines.has_disks:
        return "file systems cannot be mounted here"
    number = storm.machines.quorum_leader() if storm.random.random() < 0.4 else storm.any()
    storm.machines.fill_disk(number)
    seconds = storm.wait_s(0.5, 1.5 * SESSION_S)
    storm.machines.empty_disk(number)
    return f"node {number} for {seconds:.1f} s"


def change_transaction_version(storm: Storm) -> str:
    """Raise or lower transaction.version while clients have open transactions."""
    level = storm.random.choice(TRANSACTION_VERSIONS)
    storm.machines.set_feature("transaction.version", level)
    storm.wait_s(0.5, 1.5)  # clients read the level again
    return f"level {level}"


FAULTS: Final[dict[str, Callable[[Storm], str]]] = {
    each.__name__: each
    for each in (
        kill_leader,
        kill_leader_and_controller,
        kill_two,
        kill_all,
        kill_again_while_it_starts,
        pause,
        stop,
        roll,
        cut,
        cut_two_controllers,
        fill_disk,
        change_transaction_version,
    )
}


def show(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)
