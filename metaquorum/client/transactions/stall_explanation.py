"""Explanation, in sentences, why read_committed does not advance. Plain, from `stall_facts`.

read_committed reads up to the last stable offset: the first offset of the oldest transaction whose
marker is not replicated yet. The sentences say which transaction that is, and what will end it:

    ongoing      its producer, or its coordinator after the transaction timeout
    prepared     the marker of its coordinator, once the partition takes it
    hanging      nothing but an administrator
    none open    the replication of the last marker
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from metaquorum.client.administration.health import PartitionHealth, Trouble
from metaquorum.client.administration.topic_survival import Level, Sentence
from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.explanation.words import duration, ranges
from metaquorum.client.transactions.stall_facts import StallFacts, StallingTransaction
from metaquorum.client.transactions.values import TransactionDescription
from metaquorum.client.utc_text import utc_text

# Time after a timeout within which a coordinator aborts a transaction: three of its checks, by
# Kafka's default of transaction.abort.timed.out.transaction.cleanup.interval.ms.
OVERDUE_S: Final = 30.0


def explain(facts: StallFacts) -> list[Sentence]:
    """Return the statements about a partition; the first says whether read_committed waits."""
    if facts.health.leader is None:
        text = "the partition has no leader: no consumer can read it"
        return [Sentence("partition", Level.BAD, f"{text}{_replicas(facts.health)}")]
    if facts.last_stable_offset is None or facts.high_watermark is None:
        text = "not known: the leader does not know its high watermark, or did not answer"
        if Trouble.UNDER_MIN_ISR in facts.health.troubles:
            text += _replicas(facts.health)
        found = _of_transactions(facts) if facts.transactions else ()
        return [Sentence("offsets", Level.BAD, text), *found]
    if not facts.waiting:
        text = f"read_committed reads everything, up to offset {facts.high_watermark}"
        return [Sentence("last stable offset", Level.GOOD, text)]
    sentences = list(_of_transactions(facts))
    is_bad = any(each.level is Level.BAD for each in sentences)
    return [
        Sentence("last stable offset", Level.BAD if is_bad else Level.NOTE, _position(facts)),
        *sentences,
    ]


def _position(facts: StallFacts) -> str:
    text = (
        f"read_committed {'has come to' if facts.is_moving else 'stops at'} offset "
        f"{facts.last_stable_offset}; {_count(facts.waiting, 'offset')} up to the high watermark, "
        f"{facts.high_watermark}, can be read with read_uncommitted only"
    )
    return f"{text}. It moved meanwhile: run this again" if facts.is_moving else text


def _of_transactions(facts: StallFacts) -> Iterator[Sentence]:
    if not facts.transactions:
        if not facts.is_moving:  # else the transactions that held it have ended meanwhile
            yield _of_replication(facts)
        return
    holder = facts.transactions[0]
    yield Sentence("transaction", Level.NOTE, _whose(facts, holder))
    yield from _end(facts, holder)
    if others := facts.transactions[1:]:
        hanging = [each for each in others if each.why_hanging]
        text = f"behind it {_count(len(others), 'more transaction')} of this partition "
        text += "is open" if len(others) == 1 else "are open"
        if hanging:
            text += f", {len(hanging)} of them hanging"
        yield Sentence("next", Level.BAD if hanging else Level.NOTE, text)


def _of_replication(facts: StallFacts) -> Sentence:
    text = (
        "no transaction is open in the leader's log: the marker that ended the last one is not "
        "replicated yet"
    )
    if Trouble.UNDER_MIN_ISR in facts.health.troubles:
        return Sentence("replication", Level.BAD, f"{text}{_replicas(facts.health)}")
    isr = ", ".join(map(str, facts.health.isr))
    return Sentence("replication", Level.NOTE, f"{text}; it waits for the replicas {isr}")


def _whose(facts: StallFacts, each: StallingTransaction) -> str:
    producer = each.open.producer
    of = f"producer id {producer.producer_id}, epoch {producer.producer_epoch}"
    description = each.description
    text = f"the transaction of {of}" if description is None else (
        f"the transaction of transactional id {description.transactional_id} ({of})"
    )  # fmt: skip
    text += f" begins here at offset {each.open.start_offset}"
    last_s = (facts.now_ms - producer.last_timestamp_ms) / 1000
    if description is not None and description.start_time_ms is not None and not each.why_hanging:
        since_s = (facts.now_ms - description.start_time_ms) / 1000
        text += f"; it began at {utc_text(description.start_time_ms)}"
        text += f", {duration(max(0.0, since_s))} ago, and is {description.state}"
    if producer.last_timestamp_ms >= 0:
        text += f"; the last record has the time {utc_text(producer.last_timestamp_ms)}"
        text += f", {duration(max(0.0, last_s))} ago"
    return text


def _end(facts: StallFacts, each: StallingTransaction) -> Iterator[Sentence]:
    description = each.description
    if each.why_hanging:
        where, start = facts.where, each.open.start_offset
        text = (
            f"nothing will end it, it hangs: {each.why_hanging}; `mq-admin transactions abort "
            f"{where.topic}:{where.partition} --start-offset {start}` aborts it in this partition"
        )
        yield Sentence("end", Level.BAD, text)
    elif description is None:
        text = "not known: not all coordinators answered, and those that did do not have it"
        yield Sentence("end", Level.BAD, text)
    elif description.is_prepared:
        yield from _of_prepared(facts, each, description)
    else:
        yield _of_ongoing(facts, description)


def _of_ongoing(facts: StallFacts, description: TransactionDescription) -> Sentence:
    timeout_s = description.timeout_ms / 1000
    coordinator = f"its coordinator, node {description.coordinator},"
    begun_ms = facts.now_ms if description.start_time_ms is None else description.start_time_ms
    left_s = (begun_ms + description.timeout_ms - facts.now_ms) / 1000
    if left_s >= 0:
        text = (
            f"its producer commits or aborts it; otherwise {coordinator} aborts it at "
            f"{utc_text(begun_ms + description.timeout_ms)}, in {duration(left_s)} (transaction "
            f"timeout {duration(timeout_s)}); `mq-admin transactions abort --transactional-id "
            f"{shlex.quote(description.transactional_id)}` aborts it now and fences its producer"
        )
        return Sentence("end", Level.NOTE, text)
    text = (
        f"its timeout of {duration(timeout_s)} passed {duration(-left_s)} ago: {coordinator} aborts"
        " it at its next check"
    )
    if -left_s > OVERDUE_S:
        text += ", which is overdue: its log lines, and the health of __transaction_state, say why"
        return Sentence("end", Level.BAD, text)
    return Sentence("end", Level.NOTE, text)


def _of_prepared(
    facts: StallFacts, each: StallingTransaction, description: TransactionDescription
) -> Iterator[Sentence]:
    outcome = "commit" if description.is_commit else "abort"
    coordinator = f"its coordinator, node {description.coordinator},"
    text = f"its {outcome} is decided; the marker of {coordinator} is missing here"
    health = facts.health
    if Trouble.UNDER_MIN_ISR in health.troubles:
        yield Sentence("end", Level.BAD, f"{text}, as{_replicas(health, joined=True)}")
    else:
        level = Level.NOTE
        text += f": the leader, node {health.leader}, gets it when the coordinator reaches it"
        yield Sentence("end", level, text)
    others = [one for one in each.unmarked if (one.topic, one.index) != tuple(facts.where)]
    ill = [one for one in others if {Trouble.OFFLINE, Trouble.UNDER_MIN_ISR} & set(one.troubles)]
    if ill:
        why = "; ".join(f"{one.topic}:{one.index}:{_replicas(one, joined=True)}" for one in ill[:3])
        text = (
            f"markers are also missing in {_ranges(others)}, and the transactional id begins no "
            f"other transaction before they are written: {why}"
        )
        yield Sentence("other partitions", Level.BAD, text)


def _replicas(health: PartitionHealth, *, joined: bool = False) -> str:
    """Return the reason why a partition takes no marker, and the replicas that are missing."""
    if health.leader is None:
        text = " it has no leader" if joined else ""
    else:
        count = len(health.isr)
        least = "" if health.min_isr is None else f" of min.insync.replicas={health.min_isr}"
        verb = "is" if count == 1 else "are"
        text = f" only {_count(count, 'replica')}{least} {verb} in sync"
        text = text if joined else f";{text}"
    missing = [
        f"node {one.node}: {one.why}" if one.why else f"node {one.node}" for one in health.missing
    ]
    return f"{text} ({'; '.join(missing)})" if missing else text


def _ranges(healths: Sequence[PartitionHealth]) -> str:
    return ranges(TopicPartition(one.topic, one.index) for one in healths)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
