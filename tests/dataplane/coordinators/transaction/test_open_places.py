"""The search for open transactions after a loss: in slices, and one for all shards that ask."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

from metaquorum.dataplane.coordinators.transaction.open_places import OpenPlaces, PlacesOf
from metaquorum.dataplane.log.segments.aborted import OpenTransactions
from metaquorum.dataplane.log.segments.verification import Verifications
from metaquorum.dataplane.scheduling.time_slices import DISCARD_CPU_S, PIECE_ROWS, TimeSlicer

PARTITIONS = 10_000
LOOKS_PER_SLICE = 10


class Node:
    """Partitions, each with an open transaction, and the turns of an event loop."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.partitions: list[Any] = [led(index, index % 7) for index in range(partitions)]
        self.looked_at = 0
        self.searches = 0
        self.calls: list[Callable[[], object]] = []
        ticks = count()
        slicer = TimeSlicer(
            lambda: next(ticks) * DISCARD_CPU_S / LOOKS_PER_SLICE,
            call_after=lambda _, call: self.calls.append(call),
        )
        partitions_of_node: Any = self
        self.places = OpenPlaces(partitions_of_node, slicer)

    def __iter__(self) -> Iterator[Any]:
        self.searches += 1
        for each in list(self.partitions):
            self.looked_at += 1
            yield each

    def ask(self) -> list[PlacesOf]:
        """Ask as a shard does; return a list that gets the answer."""
        answers: list[PlacesOf] = []
        self.places.ask(answers.append)
        return answers

    def turn(self) -> None:
        self.calls.pop()()

    def finish(self) -> None:
        while self.calls:
            self.turn()


def led(index: int, *open_: int, is_served: bool = True) -> Any:
    transactions = OpenTransactions(enumerate(open_)) if open_ else None
    producers = SimpleNamespace(transactions=transactions, verifications=Verifications())
    return SimpleNamespace(
        topic="t", index=index, is_served=is_served, log=SimpleNamespace(producers=producers)
    )


def test_a_search_looks_at_few_partitions_in_one_turn() -> None:
    node = Node()
    answers = node.ask()
    assert node.looked_at == 0  # nor in the step that asks
    turns = 0
    while node.calls:
        assert not answers
        before = node.looked_at
        node.turn()
        turns += 1
        assert node.looked_at - before <= PIECE_ROWS * (LOOKS_PER_SLICE + 1)
    assert node.looked_at == PARTITIONS
    assert turns > 10
    (found,) = answers
    assert found.keys() == set(range(7))
    assert found[3][:2] == [("t", 3), ("t", 10)]


def test_many_transactions_of_one_partition_are_looked_at_in_slices() -> None:
    node = Node(0)
    node.partitions = [led(0, *range(100 * PIECE_ROWS))]
    answers = node.ask()
    node.turn()
    node.partitions[0].log.producers.transactions.end(0, 0, 10_000, False)
    node.turn()
    assert not answers
    node.finish()
    assert len(answers[0]) == 100 * PIECE_ROWS


def test_shards_that_ask_at_the_same_time_share_one_search() -> None:
    node = Node()
    answers = [node.ask() for _ in range(50)]
    node.finish()
    assert node.searches == 1
    assert all(each[0] is answers[0][0] for each in answers)


def test_a_shard_that_asks_during_a_search_gets_the_result_of_the_next_one() -> None:
    node = Node()
    first = node.ask()
    node.turn()
    node.partitions[0] = led(0, 99)  # which the search has looked at
    late = [node.ask() for _ in range(3)]
    node.finish()
    assert node.searches == 2
    assert 99 not in first[0]
    assert late[0][0][99] == [("t", 0)]
    assert late[2][0] is late[0][0]


def test_open_transactions_and_verifications_of_partitions_led_here_are_found() -> None:
    node = Node(0)
    node.partitions = [led(0), led(1, 5, 6), led(2, 5, is_served=False), led(3, 5), led(4)]
    for each in node.partitions[:4]:
        each.log.producers.verifications.begin(5)
    answers = node.ask()
    node.finish()
    assert answers == [{5: [("t", 0), ("t", 1), ("t", 3)], 6: [("t", 1)]}]
