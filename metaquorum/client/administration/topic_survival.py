"""Explanation, in sentences, of the failures that a topic survives with its configs.

With acks=all a record is acknowledged when all in-sync replicas have it, of which there are at
least min.insync.replicas (m of n replicas). The record is therefore in at least m logs, and any
m - 1 of them may be lost permanently. Unless unclean leader election is enabled, a later leader has
all acknowledged records: it is in sync, or an eligible leader replica (KIP-966).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from metaquorum.client.values import Eligible
from metaquorum.wire.primitives.frozen import frozen

NEVER: Final = (1 << 63) - 1  # value of flush.messages and flush.ms that means no flush
_NOBODY: Final = Eligible()
_NUMBERS: Final = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Level(Enum):
    """Severity of a sentence."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@frozen
class Sentence:
    """One statement about a topic. `about`: its subject, such as "acks=all" or "racks"."""

    about: str
    level: Level
    text: str


@frozen
class Place:
    """Location of a worker. None: not known."""

    host: str | None
    rack: str | None


@frozen
class Placed:
    """Replicas and in-sync replicas of a partition, by node id.

    A move adds and removes the replicas `adding` and `removing`.
    """

    index: int
    leader: int | None
    replicas: Sequence[int]
    isr: Sequence[int]
    eligible: Eligible = _NOBODY
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def settled(self) -> Sequence[int]:
        """Replicas except those that a move adds, which may have no records yet (KIP-352)."""
        return [replica for replica in self.replicas if replica not in self.adding]

    def least(self, min_isr: int) -> int:
        """Return the number of replicas that must be in sync for acks=all."""
        return min(min_isr, len(self.replicas) - len(self.removing))


@frozen
class TopicFacts:
    """Partitions and configs of a topic, and the locations of workers by id."""

    partitions: Sequence[Placed]
    min_isr: int
    unclean_election: bool
    flush_messages: int
    flush_ms: int
    places: Mapping[int, Place]

    @property
    def replication_factor(self) -> int:
        """Least number of replicas of a partition, except those that a move adds."""
        return min(len(partition.settled) for partition in self.partitions)

    @property
    def least(self) -> int:
        """Least number of replicas that must be in sync for acks=all."""
        least = min(partition.least(self.min_isr) for partition in self.partitions)
        return min(least, self.replication_factor)


def explain(facts: TopicFacts) -> list[Sentence]:
    """Return the sentences about a topic, from durability to its current state."""
    return [
        *_acks_all(facts),
        *_other_acks(facts),
        *_writing(facts),
        *_electing(facts),
        *_power(facts),
        *_spread(facts, "rack", {n: p.rack for n, p in facts.places.items()}),
        *_spread(facts, "host", {n: p.host for n, p in facts.places.items()}),
        *_now(facts),
    ]


def _acks_all(facts: TopicFacts) -> list[Sentence]:
    n, m = facts.replication_factor, facts.least
    if n == 1:
        text = (
            "There is one replica of each partition: records are lost with its disk, "
            "with any acks setting of a producer."
        )
        return [Sentence("acks=all", Level.BAD, text)]
    claim = (
        "A record acknowledged with acks=all is in the logs of all replicas in sync, "
        f"at least {m} of {n}"
    )
    if m == 1:
        text = (
            f"{claim}: while the others are out of sync, only the leader has the record, and the "
            "record is lost with it. With min.insync.replicas=2 a second replica has the record."
        )
        return [Sentence("acks=all", Level.BAD, text)]
    text = (
        f"{claim}: it survives the permanent loss of any {_workers(m - 1)}, "
        f"and of {_number(n - 1)} while all are in sync."
    )
    return [Sentence("acks=all", Level.GOOD, text)]


def _other_acks(facts: TopicFacts) -> list[Sentence]:
    one = "A record acknowledged with acks=1 is in the leader's log alone"
    if facts.replication_factor > 1:
        one += ": it is lost if the leader fails before another replica has fetched it"
    return [
        Sentence("acks=1", Level.NOTE, one + "."),
        Sentence(
            "acks=0",
            Level.NOTE,
            "With acks=0 the producer does not learn whether a record was written: any failure may"
            " lose it.",
        ),
    ]


def _writing(facts: TopicFacts) -> list[Sentence]:
    n, m = facts.replication_factor, facts.least
    found = []
    if facts.min_isr > n:
        text = f"A min.insync.replicas of {facts.min_isr} counts as {n}, the number of replicas."
        found.append(Sentence("availability", Level.NOTE, text))
    if n == 1:
        text = "While the only worker of a partition is down, the partition is unavailable."
        return [*found, Sentence("availability", Level.BAD, text)]
    if m == n:
        text = "Producers with acks=all are refused while any one replica is missing."
        return [*found, Sentence("availability", Level.BAD, text)]
    text = (
        f"Producers with acks=all continue with {_workers(n - m)} down, and are refused with one "
        "more; acks=1 and consumers continue while one replica is in sync."
    )
    return [*found, Sentence("availability", Level.GOOD, text)]


def _electing(facts: TopicFacts) -> list[Sentence]:
    if facts.replication_factor == 1:
        return []
    if facts.unclean_election:
        text = (
            "Unclean leader election is enabled: if all in-sync replicas fail, another replica "
            "becomes leader, and acknowledged records that it does not have are lost."
        )
        return [Sentence("elections", Level.BAD, text)]
    text = (
        "Only a replica with all committed records is elected: if all of these fail, the "
        "partition waits for one of them and loses nothing."
    )
    return [Sentence("elections", Level.GOOD, text)]


def _power(facts: TopicFacts) -> list[Sentence]:
    if facts.flush_messages == 1:
        text = "Records are synced to disk before they are acknowledged: they survive power loss."
        return [Sentence("power", Level.GOOD, text)]
    bound = "the records that the operating system has not written yet, about 30 s"
    if facts.flush_ms < NEVER:
        bound = f"the last {_duration(facts.flush_ms)} of records"
    if facts.flush_messages < NEVER:
        bound = f"up to {facts.flush_messages:,} records of each partition" + (
            "" if facts.flush_ms == NEVER else f", or {bound}"
        )
    if facts.replication_factor == 1:
        text = (
            f"Records are acknowledged before they are synced to disk: a power loss loses {bound}."
        )
        return [Sentence("power", Level.BAD, text)]
    text = (
        "Records are acknowledged before they are synced to disk. If one machine loses power, "
        f"the other replicas have them; if the machines of all replicas do at once, that loses "
        f"{bound}."
    )
    return [Sentence("power", Level.NOTE, text)]


def _spread(facts: TopicFacts, kind: str, places: Mapping[int, str | None]) -> list[Sentence]:
    n, m = facts.replication_factor, facts.least
    if n == 1:
        return []
    used = {replica for partition in facts.partitions for replica in partition.settled}
    if any(places.get(replica) is None for replica in used):
        if kind == "rack":
            text = "Not all workers have a rack configured (broker.rack): replicas may share one."
            return [Sentence("racks", Level.NOTE, text)]
        return []
    crowded = [
        (max(Counter(places[replica] for replica in one.settled).values()), one)
        for one in facts.partitions
    ]
    together = [one.index for count, one in crowded if count == len(one.settled)]
    if together:
        text = f"All replicas of {_partitions(together)} are on one {kind}, and are lost with it."
        return [Sentence(f"{kind}s", Level.BAD, text)]
    most = max(count for count, _ in crowded)
    if most == 1:
        text = f"No two replicas of a partition are on the same {kind}."
    else:
        text = f"Up to {_number(most)} replicas of a partition are on the same {kind}."
    stops = [one.index for count, one in crowded if len(one.settled) - count < m]
    if stops:
        text += (
            f" Without one {kind}, producers with acks=all to {_partitions(stops)} may be refused."
        )
        return [Sentence(f"{kind}s", Level.NOTE, text)]
    text += f" Reading and writing continue without any one {kind}."
    # With at most m - 1 replicas on a rack, not all copies of an acknowledged record can be on it.
    if m > most:
        text += f" The permanent loss of one {kind} loses nothing acknowledged with acks=all."
        return [Sentence(f"{kind}s", Level.GOOD, text)]
    text += f" But {_number(m)} in sync may be the ones on it: its permanent loss may lose records."
    return [Sentence(f"{kind}s", Level.NOTE, text)]


def _now(facts: TopicFacts) -> list[Sentence]:
    offline = [one for one in facts.partitions if one.leader is None]
    if offline:
        return _offline(offline)
    short = [one for one in facts.partitions if len(one.isr) < len(one.settled)]
    if not short:
        text = "Now all replicas are in sync"
        if any(one.adding for one in facts.partitions):
            text += ", except those that are being added"
        return [Sentence("now", Level.GOOD, f"{text}.")]
    worst = min(short, key=lambda one: len(one.isr))
    indexes = [one.index for one in short]
    missing = f"Now replicas of {_partitions(indexes)} are out of sync"
    left, least = len(worst.isr), worst.least(facts.min_isr)
    verb = "is" if left == 1 else "are"
    where = f"in partition {worst.index} {left} of {len(worst.settled)} {verb} in sync"
    if left < least:
        text = f"{missing}: {where}, and producers with acks=all are refused."
        return [Sentence("now", Level.BAD, text)]
    if left == least:
        then = "acks=all stops" if left > 1 else "the partition stops"
        text = f"{missing}: {where}, and {then} if one more fails."
        return [Sentence("now", Level.BAD, text)]
    return [Sentence("now", Level.NOTE, f"{missing}: {where}.")]


def _offline(partitions: Sequence[Placed]) -> list[Sentence]:
    """Return sentences that name the replicas for which offline partitions wait."""
    indexes: dict[str, list[int]] = {}
    for one in partitions:
        last = one.eligible.last_leader
        if awaited := one.isr or one.eligible.replicas:
            text = f"{' or '.join(map(str, sorted(awaited)))} becomes leader when it is back"
            if not one.isr:
                text += ", and nothing acknowledged with acks=all is lost"
        elif last is not None:
            text = (
                "no replica certainly has all records. "
                f"The last leader, {last}, becomes leader when it is back; records that it does "
                "not have are lost"
            )
        else:
            text = "no replica may become leader, except by an unclean leader election"
        indexes.setdefault(text, []).append(one.index)
    return [
        Sentence("now", Level.BAD, f"Now {_partitions(each)} {_is(each)} offline: {text}.")
        for text, each in indexes.items()
    ]


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def _workers(count: int) -> str:
    return f"{_number(count)} worker{'' if count == 1 else 's'}"


def _partitions(indexes: Sequence[int]) -> str:
    if len(indexes) == 1:
        return f"partition {indexes[0]}"
    if len(indexes) > MAX_NAMED:
        return f"{len(indexes)} partitions"
    return f"partitions {', '.join(map(str, indexes))}"


MAX_NAMED: Final = 8  # partitions


def _is(indexes: Sequence[int]) -> str:
    return "is" if len(indexes) == 1 else "are"


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:g} s"
