"""Rows of fetch responses, one for each partition."""

from collections.abc import Iterable

from metaquorum.dataplane.fetch.reader import FetchReader
from metaquorum.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from metaquorum.wire.primitives.types import Uuid


class Rows:
    """Rows of a response. Consecutive rows of one topic are grouped, as in Kafka."""

    __slots__ = ("responses",)

    def __init__(self) -> None:
        self.responses: list[FetchableTopicResponse] = []

    def add(self, rows: Iterable[tuple[str, Uuid, PartitionData]]) -> None:
        last = self.responses[-1] if self.responses else None
        for topic, topic_id, row in rows:
            if last is None or last.topic != topic or last.topic_id != topic_id:
                last = FetchableTopicResponse(topic=topic, topic_id=topic_id)
                self.responses.append(last)
            last.partitions.append(row)

    def response(self, reader: FetchReader) -> FetchResponse:
        reader.count_given()
        return FetchResponse(responses=self.responses, node_endpoints=reader.endpoints())
