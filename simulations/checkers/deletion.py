"""Checker of DeleteRecords: deleted records stay deleted, and no others are deleted."""

from metaquorum.simulations.harness.environment import Checker, Environment
from metaquorum.simulations.harness.history import Fetched


class DeletedStaysDeleted(Checker):
    """A log starts at the offset that DeleteRecords returned or later, also after restarts."""

    invariant = "L3"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # By topic id and partition: times and acknowledged log start offsets.
        self._acknowledged: dict[tuple[bytes, int], list[tuple[float, int]]] = {}
        # By name and partition: offsets of the requests; None for the high watermark.
        self._asked: dict[tuple[str, int], list[int | None]] = {}
        # By topic id, partition and run of the node: times and log start offsets it returned.
        self._shown: dict[tuple[bytes, int, int], list[tuple[float, int]]] = {}

    def asked(self, topic: str, partition: int, offset: int | None) -> None:
        self._asked.setdefault((topic, partition), []).append(offset)

    def answered(self, topic: bytes, name: str, partition: int, start: int) -> None:
        """Record the response to the newest request; `start` is the log start offset in it."""
        known = self._acknowledged.setdefault((topic, partition), [])
        for _, earlier in known[-1:]:
            self.compare(
                start >= earlier, "{}-{} began at {}, now {}", name, partition, earlier, start
            )
        known.append((self.environment.world.now, start))
        if self._asked[name, partition][-1] is None:
            self._asked[name, partition][-1] = start

    def may_begin_at(self, name: str, partition: int, offset: int) -> bool:
        """Return whether a client requested the deletion of all records before `offset`."""
        asked = self._asked.get((name, partition), [])
        return any(upto is None or upto >= offset for upto in asked)

    def fetched(self, fetched: Fetched) -> None:
        if fetched.log_start_offset < 0:
            return  # an old version of Fetch has no log start offset
        topic, first = fetched.topic, fetched.reads[0].offset if fetched.reads else None
        least = self.begins(
            topic.topic_id,
            topic.name,
            fetched.partition,
            fetched.log_start_offset,
            fetched.asked_at,
            fetched.asked_run,
        )
        if first is not None:
            self.compare(
                first >= least,
                "{}-{}: offset {} is served, records before {} were deleted",
                topic,
                fetched.partition,
                first,
                least,
            )

    def begins(
        self, topic: bytes, name: str, partition: int, start: int, asked_at: float, asked_run: int
    ) -> int:
        """Compare a log start offset in a response to a request sent at `asked_at`.

        Return the least log start offset that is allowed.
        """
        place = topic, partition
        must = 0
        for when, least in reversed(self._acknowledged.get(place, [])):
            if when <= asked_at:
                self.compare(
                    start >= least,
                    "{}-{} begins at {}; records before {} were deleted",
                    name,
                    partition,
                    start,
                    least,
                )
                must = least
                break
        if asked_run != self.environment.node.runs:
            return must
        shown = self._shown.setdefault((*place, asked_run), [])
        for when, least in reversed(shown):
            if when <= asked_at:
                self.compare(
                    start >= least, "{}-{} began at {}, now {}", name, partition, least, start
                )
                break
        if not shown or start > shown[-1][1]:
            shown.append((self.environment.world.now, start))
        return must
