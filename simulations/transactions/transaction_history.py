"""Transactions of the simulated clients, and the outcomes that the clients know.

    open -> commit or abort asked -> acknowledged
      +---> given up: the client has crashed, was fenced, or does not know the outcome

Every record has a unique value, by which the checkers know its transaction. Clients ask for a
commit only if all records of the transaction are acknowledged.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from metaquorum.simulations.replication.replicas import Place


class Producer(NamedTuple):
    """Producer id and epoch that a coordinator has given to a client."""

    producer_id: int
    epoch: int


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    number: int
    transactional_id: str
    client: str
    producer: Producer
    level: int  # level of transaction.version that the client knows
    timeout_s: float
    began_at: float
    # Values sent to each partition; the offset of those that are acknowledged.
    sent: dict[Place, dict[bytes, int | None]] = field(default_factory=dict)
    # Committed offsets, by group and partition.
    offsets: dict[tuple[str, Place], int] = field(default_factory=dict)
    commit_asked_at: float | None = None
    abort_asked_at: float | None = None
    outcome: Outcome | None = None  # acknowledged
    ended_at: float | None = None  # time of that acknowledgement

    @property
    def is_never_committed(self) -> bool:
        """Whether no reader may ever see it: no commit was asked for, or an abort acknowledged."""
        return self.commit_asked_at is None or self.outcome is Outcome.ABORTED

    @property
    def values(self) -> set[bytes]:
        return {value for values in self.sent.values() for value in values}

    def __str__(self) -> str:
        asked = [
            word
            for word, at in (("commit", self.commit_asked_at), ("abort", self.abort_asked_at))
            if at is not None
        ]
        return (
            f"transaction {self.number} of {self.client} as {self.transactional_id}"
            f" {tuple(self.producer)} (level {self.level}; asked: {asked};"
            f" acknowledged: {None if self.outcome is None else self.outcome.value})"
        )


class Fence(NamedTuple):
    """A producer that a coordinator has acknowledged, and which fences those with lower epochs."""

    producer: Producer
    at: float
    # Whether all earlier transactions have their markers, for which EndTxn does not wait.
    has_markers: bool = True


@dataclass(slots=True)
class TransactionHistory:
    transactions: list[Transaction] = field(default_factory=list)
    by_value: dict[bytes, Transaction] = field(default_factory=dict)
    # Values of requests that a coordinator or leader should refuse, and nevertheless may not.
    strays: set[bytes] = field(default_factory=set)
    # Highest acknowledged epoch of each producer id, in the order of the acknowledgements.
    fences: dict[int, list[Fence]] = field(default_factory=dict)
    # Transactions with committed offsets, by group and partition.
    commits: dict[tuple[str, Place], list[Transaction]] = field(default_factory=dict)
    amounts: dict[bytes, int] = field(default_factory=dict)  # amount of each record of a transfer
    # Input of each record that a chain has sent.
    sources: dict[bytes, tuple[Place, int]] = field(default_factory=dict)

    def begin(
        self,
        transactional_id: str,
        client: str,
        producer: Producer,
        level: int,
        timeout_s: float,
        now: float,
    ) -> Transaction:
        number = len(self.transactions)
        begun = Transaction(number, transactional_id, client, producer, level, timeout_s, now)
        self.transactions.append(begun)
        return begun

    def sends(self, transaction: Transaction, place: Place, values: list[bytes]) -> None:
        for value in values:
            transaction.sent.setdefault(place, {})[value] = None
            self.by_value[value] = transaction

    def commits_offset(
        self, transaction: Transaction, group: str, place: Place, offset: int
    ) -> None:
        transaction.offsets[group, place] = offset
        known = self.commits.setdefault((group, place), [])
        if transaction not in known:
            known.append(transaction)

    def fence_before(
        self, producer: Producer, at: float, *, needs_markers: bool = False
    ) -> Producer | None:
        """Return a newer epoch of the producer id that was acknowledged by then; None if none."""
        for fence in self.fences.get(producer.producer_id, ()):
            is_newer = fence.at <= at and fence.producer.epoch > producer.epoch
            if is_newer and (fence.has_markers or not needs_markers):
                return fence.producer
        return None

    @property
    def longest_timeout_s(self) -> float:
        return max((each.timeout_s for each in self.transactions), default=0.0)
