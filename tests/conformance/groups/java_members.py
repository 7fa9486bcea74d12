"""Members of groups that are Kafka's own verifiable-consumer, as processes."""

import json
import signal
import subprocess
import threading
from typing import Any, Final

from tests.nodes import KAFKA, PATIENCE_S

Place = tuple[str, int]
LIMIT_S: Final = PATIENCE_S


class VerifiableConsumer:
    """Kafka's verifiable-consumer, which prints its assignments, records and commits as JSON."""

    def __init__(self, bootstrap: str, group: str, topic: str, *arguments: str) -> None:
        at = ["--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic]
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [KAFKA / "tool", "verifiable-consumer", *at, *arguments],  # `exec`s java
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def assignment(self) -> set[Place]:
        owned: set[Place] = set()
        for one in tuple(self.events):
            partitions = {(each["topic"], each["partition"]) for each in one.get("partitions", ())}
            if one["name"] == "partitions_assigned":
                owned |= partitions
            elif one["name"] == "partitions_revoked":
                owned -= partitions
        return owned

    def read(self) -> list[tuple[int, int]]:
        """Return the ranges of offsets that were read, as partition and offset of each record."""
        return [
            (each["partition"], offset)
            for one in tuple(self.events)
            if one["name"] == "records_consumed"
            for each in one["partitions"]
            for offset in range(each["minOffset"], each["maxOffset"] + 1)
        ]

    def committed(self) -> dict[int, int]:
        """Return the last acknowledged commit of each partition."""
        return {
            each["partition"]: each["offset"]
            for one in tuple(self.events)
            if one["name"] == "offsets_committed" and one["success"]
            for each in one["offsets"]
        }

    def close(self) -> None:
        """Let the consumer leave the group (SIGTERM)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
