"""Members of groups as processes, which a test may kill, and what they were assigned and read."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from tests.nodes import PATIENCE_S, ROOT, wait_until
from tests.warm.process import WarmProcess, started

CLIENTS: Final = ("librdkafka", "kafka-python", "aiokafka")
LIMIT_S: Final = PATIENCE_S
Place = tuple[str, int]
Event = dict[str, Any]


PYTHON: Final = (sys.executable, "-m", "tests.conformance.groups.member")
IN_PIPES: Final = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


def _started(command: Sequence[str]) -> "subprocess.Popen[str] | WarmProcess":
    if tuple(command[:2]) == PYTHON[:2]:
        return started(command[2], command[3:], **IN_PIPES)
    return subprocess.Popen(command, text=True, cwd=ROOT, **IN_PIPES)


class Member:
    """A process that is a member: `command OPTIONS`; with a Python client, `PYTHON CLIENT`."""

    def __init__(self, client: str, command: Sequence[str], options: dict[str, Any]) -> None:
        self.client = client
        self.events: list[Event] = []
        self._process = _started((*command, json.dumps(options)))
        self._errors: list[str] = []
        self._ended = False
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until the condition is true; return its value. The process must not end before."""

        def value() -> Any:
            found = condition()
            if not found and self._process.poll() not in (None, 0):
                raise RuntimeError(f"{self.client} ended: {''.join(self._errors)[-3000:]}")
            return found

        return wait_until(value, LIMIT_S, what=f"{self.client}: {what}; last: {self.events[-3:]}")

    def wait_for(self, event: str, count: int = 1) -> Event:
        """Wait until the event has occurred `count` times; return the last of these."""
        found = self.wait(lambda: self.all(event)[count - 1 : count], f"{count} x {event!r}")
        assert isinstance(found, list)
        return dict(found[0])

    def all(self, event: str) -> list[Event]:
        return [one for one in tuple(self.events) if one["event"] == event]

    def assignment(self) -> set[Place]:
        """Return the partitions that the member owns, by its rebalance listener."""
        owned: set[Place] = set()
        for one in tuple(self.events):
            partitions = {(topic, index) for topic, index in one.get("partitions", ())}
            if one["event"] == "assigned":
                owned |= partitions
            elif one["event"] in ("revoked", "lost"):
                owned -= partitions
        return owned

    def generation(self) -> int:
        """Return the generation of the last assignment."""
        assigned = self.all("assigned")
        return int(assigned[-1]["generation"]) if assigned else -1

    def read(self) -> list[str]:
        return [one["value"] for one in self.all("record")]

    def close(self) -> None:
        """Leave the group as the client does at the end of a program."""
        self.tell("close")
        self.wait_for("closed")
        self._end()

    def kill(self) -> None:
        """Kill the process (SIGKILL), so that the member does not leave the group."""
        self._process.kill()
        self._end()

    def pause(self, signal_number: int) -> None:
        self._process.send_signal(signal_number)

    def _end(self) -> None:
        self._ended = True
        self._process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(LIMIT_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def end(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        if not self._ended:
            self.kill()


class Members:
    """The members that one test has started; `commands` has those of other languages by client."""

    def __init__(self, ended: ExitStack) -> None:
        self._ended = ended
        self.commands: dict[str, Sequence[str]] = {}

    def start(
        self, client: str, bootstrap: str, group: str, *topics: str, **options: Any
    ) -> Member:
        given = {"bootstrap": bootstrap, "group": group, "topics": topics, **options}
        member = Member(client, self.commands.get(client, (*PYTHON, client)), given)
        self._ended.callback(member.end)
        return member


def wait_shared(members: Iterable[Member], partitions: Iterable[Place]) -> None:
    """Wait until the members together own exactly these partitions, each of them at least one.

    All must have them in the same generation, so that no rebalance is under way; -1 is the
    generation of kafkajs, which has no interface for it.
    """
    members, wanted = list(members), sorted(partitions)

    def shared() -> bool:
        owned = [member.assignment() for member in members]
        return (
            all(owned)
            and sorted(place for one in owned for place in one) == wanted
            and len({member.generation() for member in members} - {-1}) <= 1
        )

    wait_until(shared, LIMIT_S, what=f"{wanted} shared: {[m.events[-2:] for m in members]}")


def read_by(members: Iterable[Member]) -> Counter[str]:
    return Counter(value for member in members for value in member.read())


def owners_by_generation(members: Iterable[Member]) -> dict[tuple[int, Place], set[str]]:
    """Return the member ids that were assigned each partition in each generation."""
    owners: dict[tuple[int, Place], set[str]] = {}
    for member in members:
        for one in member.all("assigned"):
            for topic, index in one["partitions"]:
                owners.setdefault((one["generation"], (topic, index)), set()).add(one["member"])
    return owners
