"""A node under attack, in a separate process, and the conditions that it must satisfy:

it stays alive, and its log has no traceback and no bug report
a well-behaved client is served: no failure, no stall beyond STALL_MS
its memory stays below RSS_MAX_BYTES
attackers cause no more log lines than allowed, and no password appears in them
after the attacks all sockets are closed within the idle time, and the request memory is
free again: a large request of a well-behaved client succeeds
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from metaquorum.dataplane.instruments.log_rate_limit import ALL_LINES, ALL_LINES_PER_S
from metaquorum.security.scram import MIN_ITERATIONS, ScramMechanism, salted_password
from metaquorum.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.protocol.apis import ApiKey
from tests.hostile import frames, honest
from tests.hostile.attacks import ATTACKS, Attack, Enemy
from tests.hostile.strangers import GUESSED, MECHANISMS, PASSWORD, SESSION_MS, STRANGERS, USER
from tests.metaquorum.security.certificates import Authority
from tests.nodes import PATIENCE_S, ROOT, Node, free_ports, wait_until

MIB: Final = 1 << 20
IDLE_MS: Final = 4000
REQUEST_MAX_BYTES: Final = 32 * MIB
QUEUED_MAX_BYTES: Final = 64 * MIB
SETTINGS: Final = {
    "socket.request.max.bytes": REQUEST_MAX_BYTES,
    "queued.max.request.bytes": QUEUED_MAX_BYTES,
    "log.retention.check.interval.ms": 5000,
    "log.segment.delete.delay.ms": 1000,
}
# limits the data that attackers store, so that the disk does not fill
TOPIC_CONFIGS: Final = {"retention.bytes": 64 * MIB, "segment.bytes": 16 * MIB}
# The node itself, requests in flight, one message of REQUEST_MAX_ELEMENTS as objects, and one batch
# during decompression (128 MiB, twice while its pieces are joined).
RSS_MAX_BYTES: Final = 768 * MIB
# For unauthenticated attackers: the node itself, and some 100 KB for each of hundreds.
STRANGERS_RSS_MAX_BYTES: Final = 256 * MIB
STALL_MS: Final = 5000
CLOSED_WITHIN_IDLES: Final = 3
_BUG: Final = re.compile(r"Traceback|a bug:|AssertionError")
_SAMPLE_S: Final = 0.1
_SALT: Final = b"a salt of some length"


class Siege:
    rss_limit_bytes = RSS_MAX_BYTES
    attacks: Mapping[str, Attack] = ATTACKS

    def __init__(
        self, folder: Path, seed: int, idle_ms: int = IDLE_MS, patience_s: float = 0.0
    ) -> None:
        """`patience_s`: seconds added to time limits on a busy machine."""
        self.node = Node(folder, SETTINGS | {"connections.max.idle.ms": idle_ms})
        self.idle_s = idle_ms / 1000
        self.closed_within_s = CLOSED_WITHIN_IDLES * self.idle_s + patience_s
        self.stall_ms = STALL_MS + 1000 * patience_s
        self.random = Random(seed)
        self.rss_max_bytes = 0

    def begin(self) -> None:
        self.node.start()
        host, port = self.node.bootstrap.split(":")
        self.address = host, int(port)
        self.ports = {"PLAINTEXT": int(port)}
        client = honest.Client(*self.address)
        self._create_topics(client)
        client.close()
        self.socket_count = wait_until(self._sockets, what="sockets")

    def end(self) -> None:
        self.node.stop()

    def _create_topics(self, client: honest.Client) -> None:
        from metaquorum.wire.messages.create_topics import CreatableTopicConfig

        configs = [CreatableTopicConfig(name=k, value=str(v)) for k, v in TOPIC_CONFIGS.items()]
        names = [(frames.TOPIC, frames.PARTITIONS), (frames.TOPIC.ljust(12, "-"), 1)]
        topics = [
            CreatableTopic(name=n, num_partitions=k, replication_factor=1, configs=configs)
            for n, k in names
        ]
        client.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=100_000))

    def attack(self, names: list[str], seconds: float) -> dict[str, Any]:
        """Run the attacks and return the measurements. Raises AssertionError for a violation."""
        watcher = self._start_honest()
        host, _ = self.address
        enemy = Enemy(host, self.ports, self.random, REQUEST_MAX_BYTES, self.idle_s)
        try:
            trio.run(self._attack_for, enemy, names, seconds)
            report = self._finish_honest(watcher)
        except BaseException:
            watcher.kill()
            watcher.wait()
            (self.node.folder / "sent").write_text("\n".join(f.hex() for f in enemy.sent))
            raise
        report |= {
            "attacks": names,
            "connections": enemy.connection_count,
            "rss_mib": self.rss_max_bytes // MIB,
        }
        self._check_log()
        assert not enemy.violations, enemy.violations
        assert not report["failures"], report
        assert report["max_ms"] < self.stall_ms, report
        began_s = time.monotonic()
        wait_until(
            lambda: self._sockets() <= self.socket_count,
            self.closed_within_s,
            f"sockets to be closed: {self._sockets()} instead of {self.socket_count}",
        )
        report["closed_after_s"] = round(time.monotonic() - began_s, 2)
        return report

    async def _attack_for(self, enemy: Enemy, names: list[str], seconds: float) -> None:
        failure: AssertionError | None = None
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self.attacks[name], enemy)
            deadline = trio.current_time() + seconds
            while failure is None and (
                trio.current_time() < deadline or not enemy.connection_count
            ):
                await trio.sleep(_SAMPLE_S)
                try:
                    self._check_process()
                except AssertionError as error:
                    failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _check_process(self) -> None:
        try:
            status = Path(f"/proc/{self.node.pid}/status").read_text()
        except OSError:
            raise AssertionError(f"the node has stopped: {self.node.tail()}") from None
        assert "State:\tZ" not in status, f"the node has ended: {self.node.tail()}"
        rss = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert rss is not None
        self.rss_max_bytes = max(self.rss_max_bytes, int(rss[1]) * 1024)
        assert self.rss_max_bytes < self.rss_limit_bytes, (
            f"{self.rss_max_bytes // MIB} MiB of memory"
        )

    def _check_log(self) -> None:
        text = self.node.errors.read_text()
        found = _BUG.search(text)
        assert found is None, text[max(0, found.start() - 500) : found.start() + 4000]

    def _sockets(self) -> int:
        folder = Path(f"/proc/{self.node.pid}/fd")
        count = 0
        for entry in list(folder.iterdir()):
            try:
                count += os.readlink(entry).startswith("socket:")
            except FileNotFoundError:
                continue
        return count

    def _start_honest(self) -> "subprocess.Popen[str]":
        host, port = self.address
        watcher = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.honest", host, str(port), "honest"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        return watcher

    def _finish_honest(self, watcher: "subprocess.Popen[str]") -> dict[str, Any]:
        output, _ = watcher.communicate("", timeout=PATIENCE_S)
        assert watcher.returncode == 0, "the honest client has failed"
        report: dict[str, Any] = json.loads(output)
        return report


class StrangersSiege(Siege):
    """A node with one listener of each kind; well-behaved clients use the plaintext one."""

    rss_limit_bytes = STRANGERS_RSS_MAX_BYTES
    attacks = STRANGERS

    def __init__(
        self, folder: Path, seed: int, idle_ms: int = IDLE_MS, patience_s: float = 0.0
    ) -> None:
        super().__init__(folder, seed, idle_ms, patience_s)
        names = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
        first = free_ports(range(1, len(names)))
        self._listeners = {name: first + offset for offset, name in enumerate(names)}
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        passwords = {
            f"listener.name.{name}.plain.sasl.jaas.config": f'{module} user_{USER}="{PASSWORD}";'
            for name in ("sasl_plaintext", "sasl_ssl")
        }
        listeners = (f"{name}://127.0.0.1:{port}" for name, port in self._listeners.items())
        self.node.configure(
            passwords
            | {
                "listeners": ",".join(listeners),
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.connections.max.reauth.ms": SESSION_MS,
                "ssl.keystore.location": Authority(folder).store("node"),
            }
        )

    def begin(self) -> None:
        super().begin()
        self.ports = self._listeners
        self._began_s = time.monotonic()
        upsertions = [
            ScramCredentialUpsertion(
                name=USER,
                mechanism=mechanism,
                iterations=MIN_ITERATIONS,
                salt=_SALT,
                salted_password=salted_password(mechanism, PASSWORD, _SALT, MIN_ITERATIONS),
            )
            for mechanism in ScramMechanism
        ]
        client = honest.Client(*self.address)
        asked = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
        answer = client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, asked)
        assert not any(result.error_code for result in answer.results), answer
        client.close()

    def _check_log(self) -> None:
        super()._check_log()
        lines = self.node.errors.read_text().splitlines()
        said = [line for line in lines if "on the command line" not in line]
        for secret in (PASSWORD, GUESSED):
            found = [line for line in said if secret in line]
            assert not found, found
        closed = sum("closed the connection" in line for line in said)
        most = ALL_LINES + ALL_LINES_PER_S * (time.monotonic() - self._began_s)
        assert closed <= most, f"{closed} lines of the log"
