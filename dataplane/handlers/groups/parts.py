"""Long writes in parts: each part is decided and written in a slice of the event loop of its own.

A commit of 100,000 offsets would otherwise hold the event loop for a second. Every part checks the
group again, so that a rebalance between two parts refuses the rest of a commit.

The rows are freed in slices, too: each of up to 100,000 is an object of its own.

The key of each record has the id of the group, of up to 32 kB, which the request has only once. So
that a short request does not write gigabytes, the number of rows is limited by the size of the id.
In Kafka, all records of a request must fit one batch (`max.message.bytes`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Final, Protocol, TypeAlias, TypeVar

from metaquorum.dataplane.coordinators.group.committed_offsets import piece_rows
from metaquorum.dataplane.coordinators.group.group_shard import GroupShard
from metaquorum.dataplane.coordinators.shard import Write
from metaquorum.dataplane.handlers.groups.asking import Answer, GroupResponse, HasGroups, settled
from metaquorum.dataplane.scheduling.time_slices import pause
from metaquorum.dataplane.worker.capabilities import HasClock, HasSlicer
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.schema.message import Message

R = TypeVar("R")

# Bytes of the group id in all records of a request.
MAX_ID_BYTES: Final = 16 << 20
# Error of each row, or of all.
Codes: TypeAlias = list[ErrorCode] | ErrorCode
# Makes the response of the error of each row, and the first error of all rows of a part.
Finished: TypeAlias = Callable[[Iterator[ErrorCode], ErrorCode], Answer]
Operation: TypeAlias = Callable[[GroupShard, Sequence[R]], Write[list[ErrorCode]] | Codes]


class WritesInParts(HasGroups, HasClock, HasSlicer, Protocol):
    """Capability to run an operation on a group in slices; its parts read the clock."""


class _Outcomes:
    """Outcomes of the parts of one request, which may arrive in any order.

    It has no row of a part: the response may wait for the last replica, with all rows in memory.
    """

    def __init__(self, rows_of_parts: Sequence[int], finished: Finished) -> None:
        self.response = GroupResponse()
        self._rows_of_parts = rows_of_parts
        self._codes: list[Codes] = [[] for _ in rows_of_parts]
        self._left = len(rows_of_parts)
        self._finished = finished

    def answered(self, number: int, codes: Codes) -> None:
        self._codes[number] = codes
        self._left -= 1
        if not self._left:
            refusals = (each for each in self._codes if isinstance(each, ErrorCode))
            self.response.answer(self._finished(self._of_rows(), next(refusals, ErrorCode.NONE)))

    def _of_rows(self) -> Iterator[ErrorCode]:
        for rows, codes in zip(self._rows_of_parts, self._codes, strict=True):
            yield from codes if isinstance(codes, list) else repeat(codes, rows)


async def write_in_parts(
    worker: WritesInParts,
    group_id: str,
    rows: list[R],
    operation: Operation[R],
    finished: Finished,
    *,
    even_without_rows: bool = False,
    part_rows: int | None = None,
) -> Message | GroupResponse:
    """Run the operation on parts of `rows`; return the response made of the error of each row.

    The caller must not use `rows` again: they are freed when the last part has begun.

    Without rows, the operation runs only with `even_without_rows`, to check the group. If the id of
    the group is too long for their number, all have the error RECORD_LIST_TOO_LARGE. `part_rows` is
    given for an operation that does not write a record for each row.
    """
    if not rows and not even_without_rows:
        return await settled(finished(iter(()), ErrorCode.NONE))
    if part_rows is None and len(rows) * len(group_id.encode()) > MAX_ID_BYTES:
        code, count = ErrorCode.RECORD_LIST_TOO_LARGE, len(rows)
        worker.slicer.discard(rows)
        return await settled(finished(repeat(code, count), code))
    size = part_rows or piece_rows(group_id)
    begins = range(0, len(rows) or 1, size)
    outcomes = _Outcomes([min(size, len(rows) - begin) for begin in begins], finished)
    for number, begin in enumerate(begins):
        if number:
            await pause()
        part = rows[begin : begin + size]
        answered = partial(outcomes.answered, number)
        try:
            worker.groups.call(group_id, partial(_operate, operation, part), answered, answered)
        except KafkaError as error:
            answered(error.code)
    worker.slicer.discard(rows)
    response = outcomes.response
    return await settled(response.complete() if response.is_ready else response)


def _operate(operation: Operation[R], part: Sequence[R], shard: GroupShard) -> Write[Codes] | Codes:
    return operation(shard, part)
