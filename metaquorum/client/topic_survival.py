"""What a topic survives with its configs, in sentences. A pure function over plain facts.

With acks=all a record is acknowledged once all in sync have it, and no fewer than
min.insync.replicas (m, of n replicas) are. So it is in m logs at least, and any m - 1 of them may
be lost for ever. Who leads later is one that has them, unless unclean elections are allowed: one of
those in sync, or eligible as it was in sync when the last record was committed (KIP-966).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from metaquorum.client.values import Eligible
from wire.primitives.frozen import frozen

NEVER: Final = (1 << 63) - 1  # flush.messages and flush.ms where nothing is flushed
_NOBODY: Final = Eligible()
_NUMBERS: Final = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Level(Enum):
    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@frozen
class Sentence:
    about: str
    level: Level
    text: str


@frozen
class Place:
    """Where a worker is. None: the cluster does not tell."""

    host: str | None
    rack: str | None


@frozen
class Placed:
    """A partition's replicas, and which of them are in sync."""

    index: int
    leader: int | None
    replicas: Sequence[int]
    isr: Sequence[int]
    eligible: Eligible = _NOBODY


@frozen
class TopicFacts:
    partitions: Sequence[Placed]
    min_isr: int
    unclean_election: bool
    flush_messages: int
    flush_ms: int
    places: Mapping[int, Place]

    @property
    def replication_factor(self) -> int:
        return min(len(partition.replicas) for partition in self.partitions)

    @property
    def least(self) -> int:
        """So many have to be in sync for acks=all."""
        return min(self.min_isr, self.replication_factor)


def explain(facts: TopicFacts) -> list[Sentence]:
    """In the order in which a person wants to know."""
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
            "There is one replica of each partition: what is lost with its disk is lost, "
            "whatever acks a producer asks for."
        )
        return [Sentence("acks=all", Level.BAD, text)]
    claim = (
        "A record acknowledged with acks=all is in the logs of all replicas in sync, "
        f"at least {m} of {n}"
    )
    if m == 1:
        text = (
            f"{claim}: while the others lag or are gone that is the leader alone, and the record "
            "is lost with it. With min.insync.replicas=2 there is another."
        )
        return [Sentence("acks=all", Level.BAD, text)]
    text = (
        f"{claim}: it survives the loss for ever of any {_workers(m - 1)}, "
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
            "With acks=0 nobody is told whether a record was written: any failure may lose it.",
        ),
    ]


def _writing(facts: TopicFacts) -> list[Sentence]:
    n, m = facts.replication_factor, facts.least
    found = []
    if facts.min_isr > n:
        text = (
            f"A min.insync.replicas of {facts.min_isr} counts as {n}: there are no more replicas."
        )
        found.append(Sentence("availability", Level.NOTE, text))
    if n == 1:
        text = "While the one worker is down, its partitions are neither read nor written."
        return [*found, Sentence("availability", Level.BAD, text)]
    if m == n:
        text = "Producers with acks=all are refused while any one replica is missing."
        return [*found, Sentence("availability", Level.BAD, text)]
    text = (
        f"Producers with acks=all go on with {_workers(n - m)} down, and are refused with one "
        "more; acks=1 and consumers go on while one replica in sync is there."
    )
    return [*found, Sentence("availability", Level.GOOD, text)]


def _electing(facts: TopicFacts) -> list[Sentence]:
    if facts.replication_factor == 1:
        return []
    if facts.unclean_election:
        text = (
            "Unclean elections are allowed: when all replicas in sync are gone another leads, and "
            "acknowledged records that it lacks are lost."
        )
        return [Sentence("elections", Level.BAD, text)]
    text = (
        "Only a replica that has all that is committed is elected: when all of these are gone, the "
        "partition waits for one of them and loses nothing."
    )
    return [Sentence("elections", Level.GOOD, text)]


def _power(facts: TopicFacts) -> list[Sentence]:
    if facts.flush_messages == 1:
        text = "Records are synced to disk before they are acknowledged: they survive power cuts."
        return [Sentence("power", Level.GOOD, text)]
    bound = "what the operating system has not written yet, some 30 s of records"
    if facts.flush_ms < NEVER:
        bound = f"the last {_duration(facts.flush_ms)} of records"
    if facts.flush_messages < NEVER:
        bound = f"up to {facts.flush_messages:,} records of each partition" + (
            "" if facts.flush_ms == NEVER else f", or {bound}"
        )
    if facts.replication_factor == 1:
        text = (
            "Records are acknowledged before they are synced to disk: a loss of power takes "
            f"{bound}."
        )
        return [Sentence("power", Level.BAD, text)]
    text = (
        "Records are acknowledged before they are synced to disk. Where one machine loses power "
        f"the others have them; where those of all replicas do at once, that takes {bound}."
    )
    return [Sentence("power", Level.NOTE, text)]


def _spread(facts: TopicFacts, kind: str, places: Mapping[int, str | None]) -> list[Sentence]:
    n, m = facts.replication_factor, facts.least
    if n == 1:
        return []
    used = {replica for partition in facts.partitions for replica in partition.replicas}
    if any(places.get(replica) is None for replica in used):
        if kind == "rack":
            text = (
                "Not all workers say which rack they are in (broker.rack): replicas may share one."
            )
            return [Sentence("racks", Level.NOTE, text)]
        return []
    crowded = [
        (max(Counter(places[replica] for replica in one.replicas).values()), one)
        for one in facts.partitions
    ]
    together = [one.index for count, one in crowded if count == len(one.replicas)]
    if together:
        text = f"All replicas of {_partitions(together)} are on one {kind}, and are lost with it."
        return [Sentence(f"{kind}s", Level.BAD, text)]
    most = max(count for count, _ in crowded)
    if most == 1:
        text = f"No two replicas of a partition are on the same {kind}."
    else:
        text = f"Up to {_number(most)} replicas of a partition are on the same {kind}."
    stops = [one.index for count, one in crowded if len(one.replicas) - count < m]
    if stops:
        text += (
            f" Without one {kind}, producers with acks=all to {_partitions(stops)} may be refused."
        )
        return [Sentence(f"{kind}s", Level.NOTE, text)]
    text += f" Reading and writing go on without any one {kind}."
    # With m - 1 or fewer on a rack, not all copies of what was acknowledged can be on it.
    if m > most:
        text += f" Losing one {kind} for ever loses nothing acknowledged with acks=all."
        return [Sentence(f"{kind}s", Level.GOOD, text)]
    text += f" But {_number(m)} in sync may be the ones on it: losing it for ever may lose records."
    return [Sentence(f"{kind}s", Level.NOTE, text)]


def _now(facts: TopicFacts) -> list[Sentence]:
    offline = [one for one in facts.partitions if one.leader is None]
    if offline:
        return _offline(offline)
    short = [one for one in facts.partitions if len(one.isr) < len(one.replicas)]
    if not short:
        return [Sentence("now", Level.GOOD, "Now all replicas are in sync.")]
    worst = min(short, key=lambda one: len(one.isr))
    indexes = [one.index for one in short]
    missing = f"Now replicas of {_partitions(indexes)} are missing"
    left, least = len(worst.isr), min(facts.min_isr, len(worst.replicas))
    verb = "is" if left == 1 else "are"
    where = f"in partition {worst.index} {left} of {len(worst.replicas)} {verb} in sync"
    if left < least:
        text = f"{missing}: {where}, and producers with acks=all are refused."
        return [Sentence("now", Level.BAD, text)]
    if left == least:
        then = "acks=all stops" if left > 1 else "the partition stops"
        text = f"{missing}: {where}, and {then} with one more."
        return [Sentence("now", Level.BAD, text)]
    return [Sentence("now", Level.NOTE, f"{missing}: {where}.")]


def _offline(partitions: Sequence[Placed]) -> list[Sentence]:
    """Who is waited for."""
    indexes: dict[str, list[int]] = {}
    for one in partitions:
        last = one.eligible.last_leader
        if awaited := one.isr or one.eligible.replicas:
            text = f"{' or '.join(map(str, sorted(awaited)))} leads when it is back"
            if not one.isr:
                text += ", and nothing acknowledged with acks=all is lost"
        elif last is not None:
            text = (
                "no replica is left that has everything for sure. "
                f"{last} led last, and leads when it is back; what it lacks is lost"
            )
        else:
            text = "nobody leads, and nobody who comes back may, but by an unclean election"
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
