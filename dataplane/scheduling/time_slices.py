"""Work on the loop that may take long, done in slices with turns for everybody else between them.

A handler whose work grows with the rows of its request is a generator: it yields after every few
rows (`in_pieces`), and whoever drives it decides whether it goes on at once. Nothing else about it
is asynchronous, so what it reads and changes between two yields is consistent, and what it answers
is of the time at which it looked at each row.

    begun --all done within the slice of its connection--> answered
      `--the slice is over--> waits for room --> waits for its turn <--> a slice --> answered

A slice ends by the CPU time of the loop's thread. Requests that need more than the slice in which
their connection was read share one slice in each turn of the loop, however many there are; of these
so many bytes of frames are under way at a time (`UNDER_WAY_BYTES`), the smallest first, and the
others wait as the bytes they came in, not as objects. The one that has waited longest goes first
once others have overtaken it with as many bytes as it has itself. An answer waits for its turn, but
for no room.

To free many objects takes long, too: lists, dicts and sets of a long request are not left to the
end of a function but given to `TimeSlicer.discard`, which empties them in slices of
`DISCARD_CPU_S`, one in each turn of the loop. It frees objects several times as fast as requests
make them.

Promised: a turn of the loop is late by one slice for all long requests together, by one of
`DISCARD_CPU_S`, and by the slices of the connections that have brought something in that turn. Not
promised: that a long request is quick, or that its rows are of one instant.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, Final, TypeAlias, TypeVar

import trio

from dataplane.scheduling.request_memory import RequestMemory

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

Work: TypeAlias = Generator[None, None, T]
Rows: TypeAlias = list[Any] | dict[Any, Any] | set[Any]
CallAfter: TypeAlias = Callable[[float, Callable[[], object]], object]

# Half of what a slice of the loop may take (10 ms), as a piece of work ends behind it.
SLICE_CPU_S: Final = 0.005
# Rows between two looks at the clock, each of which takes some microseconds.
PIECE_ROWS: Final = 64
FORGOTTEN_ROWS: Final = 1024
SORTED_ROWS: Final = 1000
# Of each turn of the loop, for work that no request waits for.
DISCARD_CPU_S: Final = 0.002
_END: Final[Any] = object()
# Frames of requests that are worked on in turns: as objects they take some ten times as much.
UNDER_WAY_BYTES: Final = 4 << 20


def in_pieces(
    rows: Iterable[A], work: Callable[[A], B], piece_rows: int = PIECE_ROWS
) -> Work[list[B]]:
    """What `work` says of each row, in order; it may be interrupted after every `piece_rows`."""
    left = iter(rows)
    done: list[B] = []
    while piece := list(islice(left, piece_rows)):
        done += map(work, piece)
        if len(piece) == piece_rows:
            yield
    return done


def pieces(rows: Sequence[A]) -> Iterator[Sequence[A]]:
    for first in range(0, len(rows), PIECE_ROWS):
        yield rows[first : first + PIECE_ROWS]


def each_of(
    groups: Iterable[T], rows_of: Callable[[T], Iterable[A]], work: Callable[[T, A], B]
) -> Work[list[tuple[T, list[B]]]]:
    """For each group, a topic mostly, what `work` says of it and each of its rows."""
    done: list[tuple[T, list[B]]] = []
    left = PIECE_ROWS
    for group in groups:
        of_group: list[B] = []
        done.append((group, of_group))
        for row in chain(rows_of(group), (_END,)):
            left -= 1
            if not left:
                left = PIECE_ROWS
                yield
            if row is not _END:
                of_group.append(work(group, row))
    return done


def for_each_of(
    groups: Iterable[T], rows_of: Callable[[T], Iterable[A]], work: Callable[[T, A], object]
) -> Work[None]:
    """`work` was called with each group and each of its rows."""
    left = PIECE_ROWS
    for group in groups:
        for row in chain(rows_of(group), (_END,)):
            left -= 1
            if not left:
                left = PIECE_ROWS
                yield
            if row is not _END:
                work(group, row)


def in_order(names: Iterable[str]) -> Work[Iterator[str]]:
    """The names, sorted; what is left to be done for each is done when it is asked for."""
    left = iter(names)
    runs: list[list[str]] = []
    while run := sorted(islice(left, SORTED_ROWS)):
        runs.append(run)
        yield
    return merge(*runs)


def row_count(groups: Sequence[T], rows_of: Callable[[T], Sequence[A]]) -> int:
    """Groups and their rows, counted no further than to more than PIECE_ROWS."""
    return sum([1 + len(rows_of(group)) for group in groups[: PIECE_ROWS + 1]])


def emptied(rows: Rows) -> Work[None]:
    """Nothing is in `rows`. To free many objects takes half as long as to make them."""
    if isinstance(rows, list):
        while rows:
            del rows[-FORGOTTEN_ROWS:]
            yield
        return
    take: Callable[[], object] = rows.popitem if isinstance(rows, dict) else rows.pop
    while rows:
        for _ in range(min(FORGOTTEN_ROWS, len(rows))):
            take()
        yield


def at_once(work: Work[T]) -> T:
    """What comes of work that is little."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        value: T = done.value
        return value


class TimeSlicer:
    """Of one loop. `cpu_s` is the CPU time of its thread.

    `call_after` schedules the work that no request waits for; without it that is done at once.
    """

    def __init__(
        self,
        cpu_s: Callable[[], float],
        under_way_bytes: int = UNDER_WAY_BYTES,
        call_after: CallAfter | None = None,
    ) -> None:
        self._cpu_s = cpu_s
        self._ends_s = 0.0
        self._turn = trio.Lock()  # whose waiters are served in their order
        self._room = RequestMemory(under_way_bytes, ages=True)
        self._call_after = call_after
        self._background: deque[Work[Any]] = deque()

    def start(self) -> None:
        """A slice begins; the clock is not asked before somebody asks whether it is over."""
        self._ends_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether others are to have their turn."""
        now = self._cpu_s()
        if not self._ends_s:
            self._ends_s = now + SLICE_CPU_S
        return now >= self._ends_s

    def run(self, work: Work[T]) -> tuple[T] | None:
        """What comes of `work`, in a tuple; None if the slice was over before."""
        try:
            while True:
                next(work)
                if self.is_over:
                    return None
        except StopIteration as done:
            return (done.value,)

    def discard(self, *rows: Rows) -> None:
        """Nothing is left in `rows`, which the caller uses no more, after some turns of the loop.

        Short ones are left alone: they are freed with the last reference to them.
        """
        for some in rows:
            if len(some) > FORGOTTEN_ROWS:
                self.finish_in_background(emptied(some))

    @property
    def has_background_work(self) -> bool:
        """Whether any work that no request waits for is left."""
        return bool(self._background)

    def finish_in_background(self, work: Work[Any]) -> None:
        """`work` is done after some turns of the loop, in slices; the caller does not wait."""
        if self._call_after is None:
            at_once(work)
            return
        self._background.append(work)
        if len(self._background) == 1:
            self._call_after(0.0, self._work_in_background)

    def _work_in_background(self) -> None:
        assert self._call_after is not None
        ends_s = self._cpu_s() + DISCARD_CPU_S
        while self._background:
            try:
                next(self._background[0])
            except StopIteration:
                self._background.popleft()
            if self._cpu_s() >= ends_s:
                break
        if self._background:
            self._call_after(0.0, self._work_in_background)

    async def each(self, rows: Sequence[A], work: Callable[[A], B]) -> list[B]:
        """What `work` says of each row, for a coroutine: at once where there are few."""
        return await self.do(in_pieces(rows, work), len(rows))

    async def do(self, work: Work[T], row_count: int) -> T:
        """What comes of `work`, for a coroutine: at once where it is of few rows."""
        return at_once(work) if row_count <= PIECE_ROWS else await self.finish(work, 0)

    async def pause(self) -> None:
        """Others have their turn if the slice is over, in a coroutine's loop over rows."""
        if self.is_over:
            async with self._turn:
                self.start()

    async def finish(self, work: Work[T], size_bytes: int) -> T:
        """What comes of `work`, in slices; `size_bytes` is what its request came in."""
        await self._room.reserve(size_bytes)
        try:
            while True:
                async with self._turn:  # at least a turn of the loop after the last one
                    self.start()
                    done = self.run(work)
                if done is not None:
                    return done[0]
        finally:
            self._room.release(size_bytes)
