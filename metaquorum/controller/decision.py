"""What the rules of the controller return: an answer, and the records that make it true."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from metaquorum.metadata.records import MetadataRecord
from wire.primitives.frozen import frozen

T = TypeVar("T")


@frozen
class Decision(Generic[T]):
    """An answer, and the records to be committed before it may be given.

    `divisible`: any prefix of the records leaves the metadata sound, so that they may be committed
    in several batches; else they are one batch. A None among them is no record: much was looked at
    to find the next one, and the loop may have its turn.
    """

    answer: T
    records: Iterable[MetadataRecord | None] = ()
    divisible: bool = False

    def all_records(self) -> list[MetadataRecord]:
        return [record for record in self.records if record is not None]
