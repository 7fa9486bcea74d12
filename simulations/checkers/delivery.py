"""Checkers of delivery: acknowledged records stay, once, in order and unchanged."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from metaquorum.dataplane.log.segments.names import LOG, file_name
from metaquorum.simulations.checkers.deletion import DeletedStaysDeleted
from metaquorum.simulations.checkers.log_files import naive_batches
from metaquorum.simulations.harness.environment import Checker, Environment
from metaquorum.simulations.harness.history import Attempt, Fetched, Final, PartitionOf
from metaquorum.simulations.harness.node import log_folder
from metaquorum.wire.primitives.errors import ErrorCode


class OneRecordPerOffset(Checker):
    """A leader epoch and an offset identify one record, which never changes."""

    invariant = "R4"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._known: dict[tuple[PartitionOf, int, int], bytes] = {}

    def fetched(self, fetched: Fetched) -> None:
        place = fetched.place
        for read in fetched.reads:
            known = self._known.setdefault((place, read.leader_epoch, read.offset), read.value)
            self.compare(
                known == read.value,
                "{}-{} offset {} of epoch {} was {!r} and now is {!r}",
                fetched.topic,
                fetched.partition,
                read.offset,
                read.leader_epoch,
                known[:40],
                read.value[:40],
            )


class OffsetsIncrease(Checker):
    """Offsets increase within a response, starting at its fetch offset."""

    invariant = "L1"

    def fetched(self, fetched: Fetched) -> None:
        last = fetched.fetch_offset - 1
        for read in fetched.reads:
            self.compare(
                read.offset > last,
                "{}-{}: offset {} follows offset {}",
                fetched.topic,
                fetched.partition,
                read.offset,
                last,
            )
            last = read.offset


class BelowHighWatermark(Checker):
    """No consumer reads at or past the high watermark."""

    invariant = "R5"

    def fetched(self, fetched: Fetched) -> None:
        for read in fetched.reads:
            self.compare(
                read.offset < fetched.high_watermark,
                "{}-{}: read offset {} with high watermark {}",
                fetched.topic,
                fetched.partition,
                read.offset,
                fetched.high_watermark,
            )


class NothingInvented(Checker):
    """Every record that is read was produced to this partition, byte for byte."""

    invariant = "L4"

    def fetched(self, fetched: Fetched) -> None:
        for read in fetched.reads:
            attempt = self.environment.history.attempts.get(read.value)
            self.compare(
                attempt is not None
                and self._is_of(attempt, fetched)
                and (attempt.topic.has_append_time or attempt.timestamp_ms == read.timestamp_ms),
                "{}-{} offset {}: no client produced {!r} to it",
                fetched.topic,
                fetched.partition,
                read.offset,
                read.value[:40],
            )

    @staticmethod
    def _is_of(attempt: Attempt, fetched: Fetched) -> bool:
        if attempt.place == fetched.place:
            return True
        return attempt.sent_by_name and attempt.topic.name == fetched.topic.name


class AckedOffsetIsIts(Checker):
    """A record that was sent once is read at the offset that its acknowledgement returned."""

    invariant = "L1"

    def fetched(self, fetched: Fetched) -> None:
        for read in fetched.reads:
            attempt = self.environment.history.attempts.get(read.value)
            if attempt is None or attempt.offset is None or attempt.place != fetched.place:
                continue
            if attempt.times_sent == 1:
                self.compare(
                    attempt.offset == read.offset,
                    "{} was read at offset {}",
                    attempt,
                    read.offset,
                )


class AcknowledgedIsDurable(Checker):
    """With flush.messages=1, an acknowledged record is durable when the response arrives.

    The checker reads the simulated medium. For scenarios in which nothing else removes records.
    """

    invariant = "R6"

    def acked(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if attempt.flush_promised and attempt.offset is not None and attempt.acks != 0:
                self.compare(
                    self._is_durable(attempt, attempt.offset),
                    "{} is acknowledged but not synced",
                    attempt,
                )

    def _is_durable(self, attempt: Attempt, offset: int) -> bool:
        storage = self.environment.node.storage
        folder = log_folder(storage, attempt.topic.name, attempt.partition)
        files = storage.durable_files(folder)
        bases = [int(name.removesuffix(LOG)) for name in files if name.endswith(LOG)]
        base = max((base for base in bases if base <= offset), default=None)
        return base is not None and any(
            batch.base_offset <= offset <= batch.last_offset
            for batch in naive_batches(bytes(files[file_name(base, LOG)].durable))
        )


class AcknowledgedIsKept(Checker):
    """No acknowledged record is lost, except by a power loss from a topic without flushes.

    Such a loss is a suffix of the records that were not flushed: a record may be missing only if
    the power failed after it was sent (its acknowledgement may have been in transit), and then no
    record at a higher offset that was acknowledged before that power loss may be left. (Later power
    losses need no check: records acknowledged before the first were also acknowledged before the
    later ones.)
    """

    invariant = "R6"

    def finished(self) -> None:
        places = self.environment.history.attempts_by_place()
        for place, final in self.environment.history.finals.items():
            attempts = places.get(place, [])
            acked = [a for a in attempts if a.offset is not None and a.acks != 0]
            kept = self.that_must_stay(final, sorted(acked, key=lambda a: a.offset or 0), attempts)
            self._check(final, kept)

    def that_must_stay(
        self, final: Final, acked: list[Attempt], attempts: list[Attempt]
    ) -> list[Attempt]:
        """Return the records that must be left. Compacted topics have a checker of their own."""
        return [] if final.topic.is_compacted else acked

    def _first_cut(self, attempt: Attempt) -> float | None:
        """Return the time of the first power loss after the record was sent, or None."""
        cuts = self.environment.node.power_cuts
        later = bisect_right(cuts, attempt.first_sent_at)
        return cuts[later] if later < len(cuts) else None

    def _may_begin_at(self, final: Final) -> bool:
        deleted = self.environment.checker(DeletedStaysDeleted)
        return deleted.may_begin_at(final.topic.name, final.partition, final.log_start_offset)

    def _check(self, final: Final, acked: list[Attempt]) -> None:
        there = {(read.offset, read.value) for read in final.reads}
        cuts = self.environment.node.power_cuts
        oldest_left_above = float(
            "inf"
        )  # time of acknowledgement, among records left at higher offsets
        for attempt in reversed(acked):
            assert attempt.offset is not None
            assert attempt.acked_at is not None
            if attempt.offset < final.log_start_offset:
                # The first segments may be lost, too, if the log's folder was never synced.
                self.compare(
                    final.topic.has_retention
                    or self._may_begin_at(final)
                    or (self._first_cut(attempt) is not None and not attempt.flush_promised),
                    "{} is before the log start offset {}, without retention or deletion",
                    attempt,
                    final.log_start_offset,
                )
                continue
            if self.environment.history.is_rotten(attempt.place, attempt.offset):
                continue
            if (attempt.offset, attempt.value) in there:
                self.comparisons += 1
                oldest_left_above = min(oldest_left_above, attempt.acked_at)
                continue
            first_cut = self._first_cut(attempt)
            if self.compare(
                first_cut is not None and not attempt.flush_promised,
                "{} is lost (power losses at {}, flushed: {})",
                attempt,
                cuts,
                attempt.flush_promised,
            ):
                assert first_cut is not None
                self.compare(
                    oldest_left_above > first_cut,
                    "{} is lost, but a later record, acknowledged at {}, exists: a hole in the log",
                    attempt,
                    oldest_left_above,
                )


class LastOfEachKey(AcknowledgedIsKept):
    """Compaction removes only records whose key is written again later, and expired tombstones.

    Acknowledged records that compaction must keep are judged as in any other topic.
    """

    invariant = "L2"

    def that_must_stay(
        self, final: Final, acked: list[Attempt], attempts: list[Attempt]
    ) -> list[Attempt]:
        if not final.topic.is_compacted:
            return []
        last_read: dict[bytes | None, int] = {read.key: read.offset for read in final.reads}
        there = {read.offset for read in final.reads}
        kept = []
        for attempt in acked:
            assert attempt.offset is not None
            if attempt.offset in there or self.environment.history.is_rotten(
                attempt.place, attempt.offset
            ):
                kept.append(attempt)
            elif last_read.get(attempt.key, -1) > attempt.offset:
                self.environment.world.count("records that came again, gone")
            elif any(self._is_unreadable(other, attempt) for other in attempts):
                self.environment.world.count("records that came again in a rotten batch, gone")
            elif any(self._may_have_gone(final, other, attempt) for other in attempts):
                self.environment.world.count("deletions, gone")
                self._stays_deleted(final, attempt, last_read)
            else:
                kept.append(attempt)
        return kept

    def _is_unreadable(self, later: Attempt, attempt: Attempt) -> bool:
        """Return whether `later` may be a later record of the key in a batch damaged on disk."""
        assert attempt.offset is not None
        if later.key != attempt.key or attempt.place not in self.environment.history.rotten:
            return False
        return later.offset is None or (
            later.offset > attempt.offset
            and self.environment.history.is_rotten(attempt.place, later.offset)
        )

    def _may_have_gone(self, final: Final, deletion: Attempt, attempt: Attempt) -> bool:
        """Return whether `deletion` is an expired tombstone of the record, or the record itself."""
        assert attempt.offset is not None
        if not deletion.is_deletion or deletion.key != attempt.key:
            return False
        if deletion.offset is not None and deletion.offset < attempt.offset:
            return False
        age_ms = (final.ended_at - deletion.first_sent_at + self.environment.jumped_s) * 1000
        return age_ms >= int(final.topic.configs["delete.retention.ms"])

    def _stays_deleted(
        self, final: Final, attempt: Attempt, last_read: dict[bytes | None, int]
    ) -> None:
        """Compare that a removed tombstone has left no older record of its key."""
        quick = final.ended_at - final.began_at < 0.1  # all was read before or after a cleaning
        cuts = self.environment.node.power_cuts
        lost = bisect_right(cuts, attempt.first_sent_at) < len(cuts)
        if attempt.is_deletion and quick and (attempt.flush_promised or not lost):
            self.compare(
                attempt.key not in last_read,
                "{} deleted its key, but an older record exists at offset {}",
                attempt,
                last_read.get(attempt.key),
            )


class DeliveredOnce(Checker):
    """A record exists at most once, or, without sequences, at most as often as it was sent."""

    invariant = "T1"

    def finished(self) -> None:
        for final in self.environment.history.finals.values():
            seen: dict[bytes, int] = {}
            for read in final.reads:
                seen[read.value] = seen.get(read.value, 0) + 1
            for value, times in seen.items():
                attempt = self.environment.history.attempts.get(value)
                if attempt is None:
                    continue
                allowed = 1 if attempt.idempotent else attempt.times_sent
                self.compare(times <= allowed, "{} exists {} times", attempt, times)


class OrderOfSending(Checker):
    """Records of an idempotent producer with one producer id are in the order of sending."""

    invariant = "T1"

    def finished(self) -> None:
        for place, final in self.environment.history.finals.items():
            last: dict[int, Attempt] = {}
            for read in final.reads:
                attempt = self.environment.history.attempts.get(read.value)
                if attempt is None or not attempt.idempotent or attempt.place != place:
                    continue
                before = last.get(attempt.incarnation)
                if before is not None:
                    self.compare(before.number < attempt.number, "{} follows {}", attempt, before)
                last[attempt.incarnation] = attempt


class NoGaps(Checker):
    """If a batch of an idempotent producer exists, so do all its earlier ones of that producer id.

    If a batch is refused with a retriable error, the batches after it must be refused, too; after
    another error, the producer does not wait for the responses to later batches. Not compared if
    records and the producer state of the log may have been removed: by a power loss, damage,
    deletion or compaction.
    """

    invariant = "T1"

    def finished(self) -> None:
        history = self.environment.history
        if self.environment.node.power_cuts:
            return
        names = Counter(topic.name for topic in history.topics.values())
        places = history.attempts_by_place()
        for place, final in history.finals.items():
            is_whole = not (final.log_start_offset or final.topic.is_compacted)
            if is_whole and place not in history.rotten and names[final.topic.name] == 1:
                self._check(final, places.get(place, []))

    def _check(self, final: Final, attempts: list[Attempt]) -> None:
        there = {read.value for read in final.reads}
        sent = [each for each in attempts if each.idempotent and each.times_sent]
        last: dict[int, int] = {}
        given_up: dict[int, int] = {}  # first such number
        for attempt in sent:
            number, incarnation = attempt.number, attempt.incarnation
            if attempt.value in there:
                last[incarnation] = max(last.get(incarnation, -1), number)
            if attempt.given_up:
                given_up[incarnation] = min(given_up.get(incarnation, number), number)
        for attempt in sent:
            end = last.get(attempt.incarnation, -1)
            if attempt.number < min(end, given_up.get(attempt.incarnation, end)):
                self.compare(
                    attempt.value in there,
                    "{} is missing, but record {} of the same producer id exists",
                    attempt,
                    last[attempt.incarnation],
                )


class EveryOffsetOnce(Checker):
    """A log that is not compacted has no hole and no overlap from start to end."""

    invariant = "L1"

    def finished(self) -> None:
        for final in self.environment.history.finals.values():
            if final.topic.is_compacted:
                continue
            place = PartitionOf(final.topic.topic_id, final.partition)
            offsets = [read.offset for read in final.reads]
            expected = [
                offset
                for offset in range(final.log_start_offset, final.log_end_offset)
                if not self.environment.history.is_rotten(place, offset)
            ]
            self.compare(
                offsets == expected,
                "{}-{}: {} offsets of {}..{}; the first wrong place: {}",
                final.topic,
                final.partition,
                len(offsets),
                final.log_start_offset,
                final.log_end_offset,
                next(
                    (p for p, (a, b) in enumerate(zip(offsets, expected, strict=False)) if a != b),
                    "end",
                ),
            )


class SessionsDeliverEverything(Checker):
    """A consumer with a fetch session gets all records that can be read."""

    invariant = "liveness"

    def waited(self, missing: list[str], seconds: float) -> None:
        self.compare(not missing, "not delivered in {:.0f} s: {}", seconds, missing[:3])


class LongPollsAreWoken(Checker):
    """A fetch that waits for records is answered once enough of them are committed."""

    invariant = "liveness"

    def answered(self, who: str, late: list[str]) -> None:
        """Compare a response; `late`: records acknowledged long before it."""
        self.compare(not late, "{} was not woken by {} records: {}", who, len(late), late[:1])


class OtherDirectoriesLive(Checker):
    """A failed log directory does not affect the partitions in other log directories."""

    invariant = "liveness"

    def inspected(self, dead: list[str], seconds: float) -> None:
        self.compare(
            not dead, "while a device has failed, not available within {:.0f} s: {}", seconds, dead
        )


class FailedDirectoriesTakeNothing(Checker):
    """A log directory that fails at a row of a request accepts none of the later rows.

    Otherwise records would be acknowledged by a directory that is offline when the response is
    sent.
    """

    invariant = "L7"

    def answered(self, rows: Sequence[tuple[str, int]]) -> None:
        """Compare `rows` of one response, in order: log directory and error code."""
        failed: set[str] = set()
        for log_dir, code in rows:
            if log_dir in failed:
                self.compare(
                    code != ErrorCode.NONE,
                    "{} has failed, but accepts a later row of the same request: {}",
                    log_dir,
                    rows,
                )
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.add(log_dir)
