"""A well-behaved client: `python -m tests.hostile.honest HOST PORT TOPIC`, until its stdin ends.

Writes records and reads them back on a schedule, and prints its measurements as JSON. It is a
separate process, so that its latencies are those of the node, not of the attackers.
"""

import json
import select
import socket
import struct
import sys
import time
from typing import Any, Final

from metaquorum.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from metaquorum.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from metaquorum.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import decode_response, encode_request
from metaquorum.wire.records.records import Record, batches, decode_records, encode_batch
from metaquorum.wire.schema.message import Message

PERIOD_S: Final = 0.02
LARGE_EVERY: Final = 25  # one of this number of records is large and needs request memory
LARGE_BYTES: Final = 200_000
TIMEOUT_S: Final = 180.0
VERSIONS: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.METADATA: 9,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.UNREGISTER_BROKER: 0,
}


class Client:
    """A blocking connection."""

    def __init__(self, host: str, port: int, source: str = "") -> None:
        self._socket = socket.create_connection(
            (host, port), timeout=TIMEOUT_S, source_address=(source, 0) if source else None
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 0

    def call(self, api: ApiKey, message: Message, version: int | None = None) -> Any:
        """Send a request and return the response. `version`: None for that of `VERSIONS`."""
        self.send(api, message, version)
        return self.answer(api, version)

    def send(self, api: ApiKey, message: Message, version: int | None = None) -> None:
        self._next_id += 1
        version = VERSIONS[api] if version is None else version
        self._socket.sendall(encode_request(api, version, self._next_id, "honest", message))

    def answer(self, api: ApiKey, version: int | None = None) -> Any:
        """Return the response to the last request."""
        version = VERSIONS[api] if version is None else version
        (size,) = struct.unpack(">i", self._exactly(4))
        correlation_id, answer = decode_response(api, version, memoryview(self._exactly(size)))
        assert correlation_id == self._next_id
        return answer

    def skip(self, count: int) -> None:
        """Read responses to earlier requests, and ignore what they say."""
        for _ in range(count):
            (size,) = struct.unpack(">i", self._exactly(4))
            self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the node closed an honest connection")
            data += piece
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def there_and_back(client: Client, topic: str, value: bytes) -> None:
    """Write a record and check that a fetch returns it unchanged."""
    batch = encode_batch([Record(0, int(time.time() * 1000), None, value)])
    data = PartitionProduceData(index=0, records=batch)
    written = client.call(
        ApiKey.PRODUCE,
        ProduceRequest(
            acks=-1,
            timeout_ms=100_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        ),
    )
    row = written.responses[0].partition_responses[0]
    assert row.error_code == 0, row
    asked = FetchPartition(
        partition=0, fetch_offset=row.base_offset, partition_max_bytes=2 * len(batch)
    )
    read = client.call(
        ApiKey.FETCH,
        FetchRequest(max_wait_ms=1000, topics=[FetchTopic(topic=topic, partitions=[asked])]),
    )
    row = read.responses[0].partitions[0]
    assert row.error_code == 0, row
    raw = bytes(row.records)
    (at, _) = next(batches(raw))
    assert decode_records(raw, at)[0].value == value


def main() -> None:
    host, port, topic = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    client = Client(host, port)
    client.call(
        ApiKey.CREATE_TOPICS,
        CreateTopicsRequest(
            topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)],
            timeout_ms=100_000,
        ),
    )
    print("ready", flush=True)
    took_s: list[float] = []
    failures: list[str] = []
    number = 0
    due_s = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
        number += 1
        size = LARGE_BYTES if number % LARGE_EVERY == 0 else 100
        began_s = time.monotonic()
        try:
            there_and_back(client, topic, number.to_bytes(4, "big") * (size // 4))
        except (AssertionError, OSError, EOFError) as error:
            failures.append(repr(error))
            client.close()
            client = Client(host, port)
        took_s.append(time.monotonic() - began_s)
        due_s = max(due_s + PERIOD_S, time.monotonic() - 1)
    took_s.sort()
    print(
        json.dumps(
            {
                "count": len(took_s),
                "failures": failures,
                "p50_ms": took_s[len(took_s) // 2] * 1000,
                "p99_ms": took_s[len(took_s) * 99 // 100] * 1000,
                "max_ms": took_s[-1] * 1000,
            }
        )
    )


if __name__ == "__main__":
    main()
