"""Kafka's command-line tools, run one after the other in one JVM (peers/kafka/ToolServer.java)."""

import selectors
import struct
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from tests.nodes import KAFKA, PATIENCE_S

INT: Final = struct.Struct(">i")
# These call System.exit, and add shutdown hooks to the JVM.
IN_A_JVM_OF_THEIR_OWN: Final = "verifiable-"


def alone(name: str, arguments: Sequence[str], stdin: str) -> "subprocess.CompletedProcess[str]":
    """Run the command with this short name in a JVM of its own."""
    return subprocess.run(
        [KAFKA / "tool", name, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


class KafkaCommands:
    """Runs commands as `tests/peers/kafka/tool` does, without a JVM for each of them.

    The first command runs in a JVM of its own, which stores the classes that later JVMs load.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._classes: dict[str, str] = {}

    def run(
        self, name: str, arguments: Sequence[str], stdin: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run the command with this short name. Raises TimeoutExpired after PATIENCE_S."""
        if not self._classes:
            listed = subprocess.run([KAFKA / "tool"], capture_output=True, text=True, check=True)
            self._classes = dict(line.split() for line in listed.stdout.splitlines())
            return alone(name, arguments, stdin)
        if name.startswith(IN_A_JVM_OF_THEIR_OWN):
            return alone(name, arguments, stdin)
        if self._server is None:
            self._server = subprocess.Popen(
                [KAFKA / "tool", KAFKA / "ToolServer.java"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        words = [each.encode() for each in (self._classes[name], *arguments)]
        request = [INT.pack(len(words)), *(INT.pack(len(each)) + each for each in words)]
        try:
            assert self._server.stdin is not None
            given = stdin.encode()
            self._server.stdin.write(b"".join([*request, INT.pack(len(given)), given]))
            code, *texts = self._answer()
        except BaseException:
            self.close()
            raise
        return subprocess.CompletedProcess([name, *arguments], code, *texts)

    def _answer(self) -> tuple[int, str, str]:
        deadline = time.monotonic() + PATIENCE_S
        (code,) = INT.unpack(self._read(INT.size, deadline))
        texts = []
        for _ in ("stdout", "stderr"):
            (length,) = INT.unpack(self._read(INT.size, deadline))
            texts.append(self._read(length, deadline).decode())
        return code, texts[0], texts[1]

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._server is not None
        assert self._server.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server.stdout, selectors.EVENT_READ)
            while len(data) < count:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise subprocess.TimeoutExpired("a command of Kafka", PATIENCE_S)
                more = self._server.stdout.read(count - len(data))
                if not more:
                    raise RuntimeError(f"the JVM ended with {self._server.wait()}")
                data += more
        return data

    def close(self) -> None:
        """End the JVM."""
        server, self._server = self._server, None
        if server is not None:
            with server:  # closes the pipes
                server.kill()
