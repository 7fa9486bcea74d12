"""One transactional client, in a process that can be killed or paused at any point.

It uses librdkafka, whose transactions are those of transaction.version 0, or the client of this
project, which uses the version of the cluster.

    python -m tests.chaos.transfer_client SETTINGS     (JSON; see `Client` of transfers.py)

Each transaction takes an amount from one account and gives it to others; an account is a partition.
The client writes its next step, and the outcome, as lines of JSON:

    {"begin": name, "entries": [[partition, amount], ...]}      the transaction, before it begins
    {"commit": name}                                            before its commit begins
    {"committed": name}, {"aborted": name}                      what the cluster acknowledged
    {"fatal": code, "step": step, "message": text}              the last line, after a fatal error

It ends at SIGTERM, after the current transaction.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from metaquorum.client.errors import AdminError, BrokerError
from metaquorum.client.producer import ProducerRecord
from metaquorum.client.socket_transport import connect
from metaquorum.client.transactions.blocking import BlockingTransactionalProducer
from metaquorum.client.transactions.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    UnknownOutcomeError,
)
from metaquorum.client.transactions.transactional_producer import TransactionalProducer

CALL_S: Final = 2.0  # timeout of each call; the outcome of a call that timed out is not known yet
REST_S: Final = 0.05  # between transactions, on average
OPEN_S: Final = 0.5  # longest pause within a transaction
FEATURES_AGE_S: Final = 0.5  # then the level of transaction.version is read again
ABORTED: Final = 0.2  # part of the transactions that the client aborts
SLOW: Final = 0.1  # part of the transactions with a pause in the middle


class AbortableError(Exception):
    """The transaction can only be aborted."""


class FatalError(Exception):
    """The client is of no use any longer. Arguments: name of the error, text."""


class Library(Protocol):
    """A transactional producer of some library.

    Methods raise AbortableError and FatalError. Those that return a bool return false if the
    outcome of the call is not known yet; it is then repeated.
    """

    def init(self) -> bool: ...
    def begin(self) -> bool: ...
    def produce(self, partition: int, value: str) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> bool: ...
    def abort(self) -> bool: ...


class Librdkafka:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._topic = settings["topic"]
        self._producer = Producer(
            settings["config"]
            | {
                "bootstrap.servers": settings["bootstrap"],
                "transactional.id": settings["id"],
                "transaction.timeout.ms": settings["timeout_ms"],
                "socket.timeout.ms": settings["timeout_ms"] * 2 // 3,
            }
        )

    def init(self) -> bool:
        return self._try(self._producer.init_transactions, CALL_S)

    def begin(self) -> bool:
        return self._try(self._producer.begin_transaction)

    def produce(self, partition: int, value: str) -> None:
        def call() -> None:
            try:
                self._producer.produce(self._topic, value, partition=partition)
            except KafkaException as raised:
                # An earlier record has failed meanwhile. The abort says if the error is fatal.
                if raised.args[0].code() == KafkaError._STATE:
                    raise AbortableError from raised
                raise

        self._try(call)

    def flush(self) -> None:
        def call() -> None:
            self._producer.flush(CALL_S)

        self._try(call)

    def commit(self) -> bool:
        return self._try(self._producer.commit_transaction, CALL_S)

    def abort(self) -> bool:
        return self._try(self._producer.abort_transaction, CALL_S)

    def _try(self, call: Callable[..., None], *arguments: float) -> bool:
        try:
            call(*arguments)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if not error.fatal():
                if error.txn_requires_abort():
                    raise AbortableError from raised
                if error.retriable():
                    return False
            raise FatalError(error.name(), str(error)) from raised
        return True


class Metaquorum:
    def __init__(self, settings: dict[str, Any], stack: ExitStack) -> None:
        self._topic = settings["topic"]
        cluster = stack.enter_context(connect(settings["bootstrap"], timeout_s=CALL_S))
        self._producer = BlockingTransactionalProducer(
            TransactionalProducer(
                cluster,
                settings["id"],
                transaction_timeout_s=settings["timeout_ms"] / 1000,
                features_age_s=FEATURES_AGE_S,
            )
        )

    def init(self) -> bool:
        return self._try(self._producer.init)

    def begin(self) -> bool:
        return self._try(self._producer.begin)

    def produce(self, partition: int, value: str) -> None:
        def call() -> None:
            self._producer.send(self._topic, [ProducerRecord(value.encode(), partition=partition)])

        if not self._try(call):
            raise AbortableError

    def flush(self) -> None: ...

    def commit(self) -> bool:
        return self._try(self._producer.commit)

    def abort(self) -> bool:
        return self._try(self._producer.abort)

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except AbortableTransactionError as error:
            raise AbortableError from error
        except FatalTransactionError as error:
            raise FatalError(error.code.name, str(error)) from error
        except UnknownOutcomeError as error:
            if error.is_final:
                cause = error.cause
                name = cause.code.name if isinstance(cause, BrokerError) else type(cause).__name__
                raise FatalError(name, str(error)) from error
            return False
        except BrokerError as error:
            if not error.retriable:
                raise FatalError(error.code.name, str(error)) from error
            return False
        except AdminError:  # no broker answered
            return False
        return True


class Client:
    def __init__(self, settings: dict[str, Any], library: Library) -> None:
        self._partitions = settings["partitions"]
        self._name = settings["name"]
        self._random = random.Random(settings["seed"])
        self._library = library
        self.step = "init"
        self.is_ended = False

    def run(self) -> None:
        """Run transactions until the end is asked for. Raises FatalError."""
        _until_done(self._library.init)
        number = 0
        while not self.is_ended:
            self._one(f"{self._name}.{number}")
            number += 1
            time.sleep(self._random.expovariate(1 / REST_S))

    def _one(self, name: str) -> None:
        entries = self._entries()
        self.step = "begin"
        say(begin=name, entries=entries)
        _until_done(self._library.begin)
        try:
            self.step = "write"
            self._write(name, entries)
            if self._random.random() < ABORTED:
                raise AbortableError
            self.step = "commit"
            say(commit=name)
            _until_done(self._library.commit)
        except AbortableError:
            self.step = "abort"
            _until_done(self._library.abort)
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
            self._library.produce(partition, f"{name} {amount}")
            if entry is pause_after:  # with an open transaction in the log
                self._library.flush()
                time.sleep(self._random.uniform(0, OPEN_S))


def _until_done(call: Callable[[], bool]) -> None:
    while not call():
        pass


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> int:
    settings = json.loads(sys.argv[1])
    with ExitStack() as stack:
        is_own = settings["library"] == "metaquorum"
        library = Metaquorum(settings, stack) if is_own else Librdkafka(settings)
        client = Client(settings, library)

        def end(*_: object) -> None:
            client.is_ended = True

        signal.signal(signal.SIGTERM, end)
        try:
            client.run()
        except FatalError as error:
            name, text = error.args
            say(fatal=name, step=client.step, message=text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
