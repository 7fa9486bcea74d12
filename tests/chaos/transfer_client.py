"""One transactional client of librdkafka, in a process that can be killed or paused at any point.

    python -m tests.chaos.transfer_client SETTINGS     (JSON; see `Client` of transfers.py)

Each transaction takes an amount from one account and gives it to others; an account is a partition.
The client writes what it is about to do, and what came of it, as lines of JSON:

    {"begin": name, "entries": [[partition, amount], ...]}      the transaction, before it begins
    {"commit": name}                                            before its commit begins
    {"committed": name}, {"aborted": name}                      what the cluster acknowledged
    {"fatal": error code, "message": text}                      the last line, after a fatal error

It ends at SIGTERM, after the current transaction.
"""

import json
import random
import signal
import sys
import time
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

CALL_S: Final = 2.0  # timeout of each call; the outcome of a call that timed out is not known yet
REST_S: Final = 0.05  # between transactions, on average
OPEN_S: Final = 0.5  # longest pause within a transaction
ABORTED: Final = 0.2  # part of the transactions that the client aborts
SLOW: Final = 0.1  # part of the transactions with a pause in the middle


class AbortableError(Exception):
    """The transaction can only be aborted."""


class Client:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._topic = settings["topic"]
        self._partitions = settings["partitions"]
        self._name = settings["name"]
        self._random = random.Random(settings["seed"])
        self._producer = Producer(settings["config"])
        self.is_ended = False

    def run(self) -> None:
        """Run transactions until the end is asked for. Raises KafkaException for fatal errors."""
        self._until_done(self._producer.init_transactions)
        number = 0
        while not self.is_ended:
            self._one(f"{self._name}.{number}")
            number += 1
            time.sleep(self._random.expovariate(1 / REST_S))

    def _one(self, name: str) -> None:
        entries = self._entries()
        say(begin=name, entries=entries)
        self._producer.begin_transaction()
        try:
            self._write(name, entries)
            if self._random.random() < ABORTED:
                raise AbortableError
            say(commit=name)
            self._until_done(self._producer.commit_transaction)
        except AbortableError:
            self._until_done(self._producer.abort_transaction)
            say(aborted=name)
        else:
            say(committed=name)

    def _entries(self) -> list[tuple[int, int]]:
        """Return amounts whose sum is 0, in two or three partitions."""
        payer, *payees = self._random.sample(range(self._partitions), self._random.randint(2, 3))
        amounts = [self._random.randint(1, 100) for _ in payees]
        return [(payer, -sum(amounts)), *zip(payees, amounts, strict=True)]

    def _write(self, name: str, entries: list[tuple[int, int]]) -> None:
        pause_after = self._random.choice(entries) if self._random.random() < SLOW else None
        for entry in entries:
            partition, amount = entry
            try:
                self._producer.produce(self._topic, f"{name} {amount}", partition=partition)
            except KafkaException as error:
                self._check(error)
            if entry is pause_after:  # what was written so far is in the log, and open
                self._producer.flush(CALL_S)
                time.sleep(self._random.uniform(0, OPEN_S))

    def _until_done(self, call: Any) -> None:
        """Repeat the call until its outcome is known. Raises AbortableError."""
        while True:
            try:
                call(CALL_S)
            except KafkaException as error:
                self._check(error)
            else:
                return

    def _check(self, raised: KafkaException) -> None:
        """Return for an error after which the call is repeated; raise it, or AbortableError."""
        error: KafkaError = raised.args[0]
        if error.fatal():
            raise raised
        if error.txn_requires_abort():
            raise AbortableError from raised
        if not error.retriable():
            raise raised


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> int:
    client = Client(json.loads(sys.argv[1]))

    def end(*_: object) -> None:
        client.is_ended = True

    signal.signal(signal.SIGTERM, end)
    try:
        client.run()
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        say(fatal=error.name(), message=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
