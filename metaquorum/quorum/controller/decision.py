"""The result of a controller rule: an answer, and the records that implement it."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from metaquorum.metadata.records import MetadataRecord
from metaquorum.wire.primitives.frozen import frozen

T = TypeVar("T")


@frozen
class Decision(Generic[T]):
    """Answer of a rule, and the records to commit before the controller may send the answer.

    If `divisible`, any prefix of the records leaves the metadata consistent, and they may be
    committed in several batches; otherwise they are one batch. A None among the records is not a
    record: it marks a point where the event loop may run other tasks during a long scan.
    """

    answer: T
    records: Iterable[MetadataRecord | None] = ()
    divisible: bool = False

    def all_records(self) -> list[MetadataRecord]:
        return [record for record in self.records if record is not None]
