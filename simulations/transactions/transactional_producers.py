"""Producers with transactions: commits, aborts, crashes, zombies, late records, and transfers.

A producer writes to several partitions, commits most of its transactions and aborts the others. At
times it waits for longer than its timeout, sends a record after the end, or continues although it
was fenced. A transfer moves an amount between two partitions: its records add up to zero.
"""

from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN
from metaquorum.simulations.replication.replica_checkers import AcknowledgedStays
from metaquorum.simulations.replication.replicas import Place
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.transactions.transaction_history import Producer, Transaction
from metaquorum.simulations.transactions.transactional_clients import (
    BUMPS,
    CrashError,
    RefusedError,
    TransactionalClient,
)
from metaquorum.wire.messages.end_txn import EndTxnRequest
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

ACCOUNTS: Final = "accounts"
KEYS: Final = 3
COMMITS: Final = 0.7  # share of transactions
SLOW: Final = 0.05  # share that wait for longer than their timeout
LATE: Final = 0.15  # share of ends with a record after them
VANISH: Final = 0.3  # share of instances that crash
STEPS: Final = (3, 7, 15, 30)  # requests until a crash, at most


class TransactionalProducer(TransactionalClient):
    """Producer of transactions over several partitions."""

    def __init__(
        self,
        cluster_state: ReplicatedClusterState,
        name: str,
        draw: Random,
        transactional_id: str,
        timeout_ms: int,
        topics: tuple[str, ...],
    ) -> None:
        super().__init__(cluster_state, name, draw, transactional_id, timeout_ms)
        self._topics = topics
        self._left = cluster_state.settings.records

    async def run(self, runtime: Runtime) -> None:
        while self._left > 0 and not self.cluster_state.closing and not self._is_stuck():
            crashes = self._draw.random() < VANISH
            self._new_instance(self._draw.randint(0, self._draw.choice(STEPS)) if crashes else -1)
            try:
                await self._live(runtime)
            except CrashError as error:
                self.say(f"{error}")
            except RefusedError as error:
                self.say(f"gives up: {error}")
            if self.cluster_state.calm:
                self._left = min(self._left, 10)
            if self._left <= 0 and self._draw.random() < VANISH:
                await self._vanish(runtime)
            await sleep(runtime.clock, RETRY_S * (1 + 4 * self._draw.random()))
        self.close_links()
        self.done = True

    async def _vanish(self, runtime: Runtime) -> None:
        """Begin one more transaction, and end neither it nor another one afterwards."""
        self._new_instance(-1)
        try:
            await self.learn_level(runtime)
            await self.init_producer(runtime)
            transaction = await self.begin(runtime)
            places = self._draw_places()
            self.cluster_state.world.count("clients that vanish", len(places) > 0)
            await self._fill(runtime, transaction, places)
        except (CrashError, RefusedError) as error:
            self.say(f"vanishes: {error}")

    async def _live(self, runtime: Runtime) -> None:
        await self.learn_level(runtime)
        await self.init_producer(runtime)
        while self._left > 0:
            self._step()
            places = self._draw_places()
            if not places:
                await sleep(runtime.clock, RETRY_S)
                continue
            transaction = await self.begin(runtime)
            try:
                await self._fill(runtime, transaction, places)
                if self.learns_early:
                    await self.ask_level(runtime)
                commits = self._draw.random() < COMMITS
                await self.end(runtime, transaction, commits=commits)
                if self._draw.random() < LATE:
                    await self._send_late(runtime, transaction)
            except RefusedError as error:
                self.say(f"{transaction.number} is refused: {error}")
                self.cluster_state.world.count("transactions refused")
                if error.is_fatal:
                    await self._haunt(runtime, transaction)
                    await self.init_producer(runtime)
                elif transaction.commit_asked_at is None and transaction.sent:
                    await self._abort(runtime, transaction)
                else:
                    await self.init_producer(runtime)
            await sleep(runtime.clock, self._draw.random() * self.cluster_state.settings.think_s)

    async def _abort(self, runtime: Runtime, transaction: Transaction) -> None:
        try:
            await self.end(runtime, transaction, commits=False)
        except RefusedError:
            await self.init_producer(runtime)

    def _draw_places(self) -> list[tuple[str, Place]]:
        lasting = self.cluster_state.topic_outcomes.lasting
        places = [
            (name, Place(lasting[name][0], index))
            for name in self._topics
            if name in lasting
            for index in range(lasting[name][1])
        ]
        places = [at for at in places if not self.is_over(*at)]
        return self._draw.sample(places, min(len(places), self._draw.choice([1, 2, 2, 4])))

    async def _fill(
        self, runtime: Runtime, transaction: Transaction, places: list[tuple[str, Place]]
    ) -> None:
        for _ in range(self._draw.choice([1, 1, 2])):
            for name, place in places:
                count = self._draw.choice([1, 1, 3])
                values = self.new_values(transaction, place, count)
                keys: list[bytes | None] = [
                    b"key %d" % self._draw.randrange(KEYS) for _ in range(count)
                ]
                self._left -= count
                await self.produce(runtime, transaction, name, place, values, keys)
                if self._draw.random() < SLOW and not self.cluster_state.calm:
                    self.cluster_state.world.count("clients slower than their timeout")
                    await sleep(runtime.clock, self._timeout_ms / 1000 * self._draw.uniform(1, 2))
                await sleep(
                    runtime.clock, self._draw.random() * self.cluster_state.settings.think_s
                )

    async def _send_late(self, runtime: Runtime, transaction: Transaction) -> None:
        """Send a record of a transaction that has ended; leaders must refuse it."""
        place = self._draw.choice(sorted(transaction.sent))
        await self._send_stray(runtime, transaction, place)
        if transaction.level < BUMPS:
            # If the answer is lost, the record may still be accepted into the next transaction.
            await self.init_producer(runtime)

    async def _send_stray(self, runtime: Runtime, transaction: Transaction, place: Place) -> None:
        names = self.cluster_state.topic_outcomes.lasting.items()
        name = next((each for each, (topic_id, _) in names if topic_id == place.topic_id), None)
        if name is None:
            return
        values = self.new_values(transaction, place, 1)
        self.history.strays.update(values)
        stays = self.cluster_state.checker(AcknowledgedStays)
        stays.idempotent.setdefault(place, set()).update(values)
        # At level 2 the epoch is over; otherwise the next sequence of the same epoch.
        producer: Producer = transaction.producer
        sequence = sum(map(len, [transaction.sent[place]]))
        if transaction.level < BUMPS:
            sequence = self._sequences.get(place, 0)
        data = self._batch(runtime, values, [b"key 0"], producer, sequence)
        self.cluster_state.world.count("records after the end")
        try:
            await self.send_once(runtime, name, place, data, producer)
        except BROKEN as error:
            self._leaders.pop(place, None)
            self.say(f"late record: {error!r}")

    async def _haunt(self, runtime: Runtime, transaction: Transaction) -> None:
        """Send one more request although this instance was fenced."""
        if self._draw.random() < 0.5 or not transaction.sent:
            return
        if self._draw.random() < 0.5:
            place = self._draw.choice(sorted(transaction.sent))
            await self._send_stray(runtime, transaction, place)
            return
        # The outcome stays the coordinator's: an end that was asked for is not asked otherwise.
        message = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=transaction.producer.producer_id,
            producer_epoch=transaction.producer.epoch,
            committed=transaction.commit_asked_at is not None,
        )
        code, _ = await self._at_coordinator(
            runtime, ApiKey.END_TXN, message, lambda r: [r.error_code]
        )
        self.cluster_state.world.count("ends of zombies", code is not ErrorCode.NONE)


class TransferringProducer(TransactionalProducer):
    """Moves amounts between two partitions of one topic."""

    async def _fill(
        self, runtime: Runtime, transaction: Transaction, places: list[tuple[str, Place]]
    ) -> None:
        lasting = self.cluster_state.topic_outcomes.lasting.get(ACCOUNTS)
        if lasting is None:
            raise CrashError("no accounts")
        topic_id, partitions = lasting
        if any(self.is_over(ACCOUNTS, Place(topic_id, index)) for index in range(partitions)):
            self._left = 0
            raise CrashError("an account is lost")
        amount = self._draw.randint(1, 99)
        indexes = self._draw.sample(range(partitions), min(2, partitions))
        if len(indexes) < 2:
            indexes *= 2
        for index, leg in zip(indexes, (amount, -amount), strict=True):
            place = Place(topic_id, index)
            values = self.new_values(transaction, place, 1)
            self.history.amounts[values[0]] = leg
            self._left -= 1
            await self.produce(runtime, transaction, ACCOUNTS, place, values, [b"account"])
            if self._draw.random() < SLOW and not self.cluster_state.calm:
                await sleep(runtime.clock, self._timeout_ms / 1000 * self._draw.uniform(1, 2))
