"""One node, its clients, the history of what clients did, and the checkers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from metaquorum.runtime import Runtime
from metaquorum.simulations.harness.client import ClientConnection, connect, draw_versions
from metaquorum.simulations.harness.history import Attempt, Fetched, History
from metaquorum.simulations.kernel.comparing import Comparing
from metaquorum.simulations.kernel.machine import Machine
from metaquorum.simulations.kernel.world import World
from metaquorum.wire.records.records import Codec

C = TypeVar("C", bound="Checker")

NODE: Final = "node-1"
PORT: Final = 9092


@dataclass(slots=True)
class Settings:
    """Settings that a seed draws before its world begins; a scenario then changes some."""

    producers: int = 2
    consumers: int = 1
    hostiles: int = 0
    topics: int = 2
    max_partitions: int = 3
    # Number of records that each producer tries to write.
    records: int = 60
    max_batch_records: int = 6
    max_value_bytes: int = 300
    big_value: float = 0.02
    big_value_bytes: int = 270_000  # above INLINE_APPEND_BYTES: appended in a worker thread
    pipeline: int = 3
    think_s: float = 0.01
    flush: float = 0.5
    idempotent: float = 0.6
    # Probability that an idempotent producer without unanswered batches takes a new producer id.
    begins_anew: float = 0.0
    codecs: tuple[Codec, ...] = tuple(Codec)
    segment_bytes: int = 4096
    index_interval_bytes: int = 512
    retention: float = 0.0
    # Per turn of the administrator: a topic is deleted; configs, partitions or records change.
    delete_topics: float = 0.0
    changes: float = 0.0
    # Number of consumers that use fetch sessions.
    sessions: int = 0
    # Number of clients whose fetches wait for seconds, some of them for many partitions.
    long_pollers: int = 0
    # Range of the scatter of records' timestamps; share of topics with LogAppendTime.
    time_scatter_ms: int = 3
    append_time: float = 0.0
    # Seconds for the last fetches of consumers, and for the node to append batches of acks=0.
    linger_s: float = 0.3
    compacted: float = 0.0
    keys: int = 4
    deletions: float = 0.2
    delete_retention_ms: int = 60_000
    several_log_dirs: bool = False
    # Number of administrators that move replicas between the log directories.
    disk_movers: int = 0
    # Faults, in order, and the seconds between them.
    faults: list[str] = field(default_factory=list)
    fault_gap_s: float = 0.4
    node_configs: dict[str, str] = field(default_factory=dict)
    # Instead of drawn values, if set: fields of `DiskFaults`; the number of logs from which
    # `sync_all` is used.
    syncs_all: bool | None = None
    interleaved: float | None = None
    many_logs: int | None = None


def draw_settings(draw: Random) -> Settings:
    segment_bytes = draw.choice([1000, 4096, 20_000, 700_000])
    return Settings(
        producers=draw.randint(1, 3),
        consumers=draw.randint(1, 2),
        topics=draw.randint(1, 3),
        records=draw.choice([20, 40, 80]),
        max_batch_records=draw.choice([1, 4, 12]),
        max_value_bytes=draw.choice([40, 300, 1500]),
        # A batch larger than a segment is refused.
        big_value=draw.choice([0.0, 0.05]) if segment_bytes > 100_000 else 0.0,
        pipeline=draw.choice([1, 3, 5]),
        think_s=draw.choice([0.0, 0.005, 0.03]),
        flush=draw.choice([0.0, 0.5, 1.0]),
        idempotent=draw.choice([0.0, 0.6, 1.0]),
        segment_bytes=segment_bytes,
        index_interval_bytes=draw.choice([1, 256, 4096]),
        fault_gap_s=draw.choice([0.1, 0.4, 1.0]),
        changes=draw.choice([0.0, 0.2, 0.6]),
        sessions=draw.randint(0, 2),
        time_scatter_ms=draw.choice([0, 3, 20_000]),
        append_time=draw.choice([0.0, 0.0, 0.3]),
    )


class Environment:
    """State that the clients, faults and checkers of one node share."""

    def __init__(
        self, world: World, settings: Settings, checkers: Sequence[type["Checker"]]
    ) -> None:
        self.world = world
        self.settings = settings
        self.history = History()
        self.node: Machine = world.machine(
            NODE,
            skew_s=world.stream("skew").uniform(-300, 300),
            rate=1 + world.stream("rate").uniform(-1e-4, 1e-4),
        )
        if settings.syncs_all is not None:
            self.node.faults.syncs_all = settings.syncs_all
        if settings.interleaved is not None:
            self.node.faults.interleaved = settings.interleaved
        self.checkers = [checker(self) for checker in checkers]
        self.order = self.checker(AnswersInOrder)
        # Total seconds by which the node's clock was put forward.
        self.jumped_s = 0.0
        # Whether producers and consumers are to end.
        self.closing = False
        self.stream = world.stream("workload")

    def checker(self, kind: type[C]) -> C:
        for checker in self.checkers:
            if isinstance(checker, kind):
                return checker
        raise KeyError(kind)

    @property
    def address(self) -> tuple[str, int]:
        return NODE, PORT

    async def connect(self, runtime: Runtime, who: str, draw: Random) -> ClientConnection:
        connection = await connect(runtime, self.address, who, draw_versions(draw), self.order)
        self.world.count("connections")
        return connection

    async def run(self, name: str, program: Callable[[Runtime], Awaitable[None]]) -> None:
        """Run a client's program to its end, on a machine of that name."""
        machine = self.world.machines.get(name) or self.world.machine(name)
        fate = machine.start(program)
        await fate.done.wait()
        if fate.error is not None:
            raise fate.error

    def acked(self, attempts: list[Attempt], base_offset: int) -> None:
        """Record that a batch was acknowledged at `base_offset`; -1: the node did not return it."""
        for number, attempt in enumerate(attempts):
            if attempt.acked_at is None:
                attempt.acked_at = self.world.now
                since = attempt.topic.flushes_since
                attempt.flush_promised = since is not None and since <= attempt.first_sent_at
                attempt.offset = base_offset + number if base_offset >= 0 else None
        self.world.count("acknowledged records", len(attempts))
        for checker in self.checkers:
            checker.acked(attempts)

    def fetched(self, fetched: Fetched) -> None:
        self.world.count("records read", len(fetched.reads))
        for checker in self.checkers:
            checker.fetched(fetched)

    def finished(self) -> None:
        for checker in self.checkers:
            checker.finished()


class Checker(Comparing):
    """Base class of the checkers of one node."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment.world)
        self.environment = environment

    # Notifications, in the order of the world's events.

    def acked(self, attempts: list[Attempt]) -> None:
        """Check records of one batch that were acknowledged."""

    def fetched(self, fetched: Fetched) -> None:
        """Check a partition of a fetch response."""

    def finished(self) -> None:
        """Check `history.finals`, the records that can be read at the end of the run."""


class AnswersInOrder(Checker):
    """Each connection gets one response per request, in order."""

    invariant = "P1"

    def answered(self, who: str, expected: int, correlation_id: int) -> None:
        self.compare(
            expected == correlation_id,
            "{} got the response to request {}, expected that to request {}",
            who,
            correlation_id,
            expected,
        )
