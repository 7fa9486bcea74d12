"""Sentences about a topic, with one row for each way in which topics differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from metaquorum.client.administration.topic_survival import (
    NEVER,
    Level,
    Place,
    Placed,
    Sentence,
    TopicFacts,
    explain,
)
from metaquorum.client.values import Eligible

RACKS = {1: Place("h1", "a"), 2: Place("h2", "b"), 3: Place("h3", "c"), 4: Place("h4", "a")}


def facts(
    *isrs: Sequence[int],
    replicas: Sequence[int] = (1, 2, 3),
    min_isr: int = 2,
    unclean: bool = False,
    flush_messages: int = NEVER,
    flush_ms: int = NEVER,
    places: Mapping[int, Place] = RACKS,
) -> TopicFacts:
    return TopicFacts(
        [
            Placed(index, isr[0] if isr else None, replicas, isr or replicas[:1])
            for index, isr in enumerate(isrs or [replicas])
        ],
        min_isr,
        unclean,
        flush_messages,
        flush_ms,
        places,
    )


def said(facts: TopicFacts, about: str) -> list[Sentence]:
    return [sentence for sentence in explain(facts) if sentence.about == about]


@pytest.mark.parametrize(
    ("topic", "about", "level", "words"),
    [
        (facts(replicas=(1,), min_isr=1), "acks=all", Level.BAD, "one replica of each partition"),
        (facts(), "acks=all", Level.GOOD, "of any one worker, and of two while all"),
        (facts(min_isr=3), "acks=all", Level.GOOD, "at least 3 of 3"),
        (facts(min_isr=1), "acks=all", Level.BAD, "the record is lost with it"),
        (facts(), "acks=1", Level.NOTE, "before another replica has fetched it"),
        (facts(), "acks=0", Level.NOTE, "any failure may lose it"),
        (facts(), "availability", Level.GOOD, "continue with one worker down"),
        (facts(min_isr=1), "availability", Level.GOOD, "continue with two workers down"),
        (facts(min_isr=3), "availability", Level.BAD, "refused while any one replica is missing"),
        (facts(replicas=(1,), min_isr=1), "availability", Level.BAD, "partition is unavailable"),
        (facts(replicas=(1, 2), min_isr=4), "availability", Level.NOTE, "of 4 counts as 2"),
        (facts(), "elections", Level.GOOD, "waits for one of them and loses nothing"),
        (facts(unclean=True), "elections", Level.BAD, "records that it does not have are lost"),
        (facts(flush_messages=1), "power", Level.GOOD, "they survive power loss"),
        (facts(), "power", Level.NOTE, "not written yet, about 30 s"),
        (facts(flush_ms=500), "power", Level.NOTE, "loses the last 500 ms of records"),
        (facts(flush_messages=10_000), "power", Level.NOTE, "up to 10,000 records of each"),
        (facts(flush_messages=10, flush_ms=2000), "power", Level.NOTE, "up to 10 records"),
        (facts(replicas=(1,), min_isr=1), "power", Level.BAD, "a power loss loses"),
        (facts(), "racks", Level.GOOD, "The permanent loss of one rack loses nothing"),
        (facts(min_isr=1), "racks", Level.NOTE, "its permanent loss may lose records"),
        (facts(min_isr=3), "racks", Level.NOTE, "Without one rack, producers"),
        (facts(replicas=(1, 4)), "racks", Level.BAD, "partition 0 are on one rack"),
        (facts(replicas=(1, 2, 4)), "racks", Level.NOTE, "Up to two replicas"),
        (facts(replicas=(1, 2, 4)), "hosts", Level.GOOD, "on the same host"),
        (facts(places={}), "racks", Level.NOTE, "Not all workers have a rack"),
        (facts(), "now", Level.GOOD, "all replicas are in sync"),
        (facts((1, 2, 3), (1, 2, 3), ()), "now", Level.BAD, "partition 2 is offline"),
        (facts((1, 2, 3), (2,)), "now", Level.BAD, "1 1 of 3 is in sync, and producers"),
        (facts((1, 2), (2, 3)), "now", Level.BAD, "0 2 of 3 are in sync, and acks=all"),
        (facts((1, 2), min_isr=1), "now", Level.NOTE, "2 of 3 are in sync."),
        (facts((2,), min_isr=1), "now", Level.BAD, "and the partition stops if one more fails"),
        (facts(*[(1, 2)] * 20, min_isr=1), "now", Level.NOTE, "replicas of 20 partitions"),
    ],
)  # fmt: skip
def test_sentences(topic: TopicFacts, about: str, level: Level, words: str) -> None:
    found = said(topic, about)
    assert [one for one in found if words in one.text and one.level is level], found


@pytest.mark.parametrize(
    ("replicas", "isr", "adding", "removing", "about", "words"),
    [
        # From 1, 2 to 3, 2
        ((3, 2, 1), (1, 2), (3,), (1,), "acks=all", "at least 2 of 2"),
        ((3, 2, 1), (1, 2), (3,), (1,), "now", "are in sync, except those that are being added."),
        ((3, 2, 1), (1,), (3,), (1,), "now", "1 of 2 is in sync, and producers with acks=all are"),
        ((3, 2, 1), (1, 2), (3,), (1,), "racks", "No two replicas"),
        # One replica more, on the rack of another
        ((1, 2, 4), (1, 2), (4,), (), "racks", "No two replicas"),
        ((1, 2, 3), (1,), (2, 3), (), "acks=all", "one replica of each partition"),
        # Down to one replica
        ((1, 2, 3), (1,), (), (2, 3), "now", "1 of 3 is in sync, and the partition stops"),
        ((1, 2, 3), (1, 2, 3), (), (2, 3), "acks=all", "at least 1 of 3"),
    ],
)
def test_replicas_that_a_move_adds_do_not_count(
    replicas: Sequence[int],
    isr: Sequence[int],
    adding: Sequence[int],
    removing: Sequence[int],
    about: str,
    words: str,
) -> None:
    topic = facts(isr, replicas=replicas)
    moving = replace(topic.partitions[0], adding=adding, removing=removing)
    (found,) = said(replace(topic, partitions=[moving]), about)
    assert words in found.text


def test_of_partitions_that_are_offline_it_is_said_who_is_waited_for() -> None:
    topic = facts((), (), (), ())
    known = (Eligible((2, 1), 1), Eligible((), 3), Eligible(), Eligible((1, 2)))
    partitions = [
        replace(one, isr=(), eligible=eligible)
        for one, eligible in zip(topic.partitions, known, strict=True)
    ]
    found = [one.text for one in said(replace(topic, partitions=partitions), "now")]
    assert len(found) == 3
    assert found[0].startswith(
        "Now partitions 0, 3 are offline: 1 or 2 becomes leader when it is back"
    )
    assert "The last leader, 3, becomes leader when it is back; records" in found[1]
    assert "partition 2 is offline" in found[2]
    assert "by an unclean leader election" in found[2]


def test_nothing_is_said_of_what_nobody_knows() -> None:
    assert said(facts(places={}), "hosts") == []
    assert said(facts(replicas=(1,), min_isr=1), "racks") == []
    assert said(facts(replicas=(1,), min_isr=1), "elections") == []


def test_every_sentence_is_one() -> None:
    for topic in (facts(), facts(min_isr=1), facts(replicas=(1,)), facts((1,), unclean=True)):
        for sentence in explain(topic):
            assert sentence.text[0].isupper()
            assert sentence.text.endswith(".")
