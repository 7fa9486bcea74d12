"""Long work on the event loop, divided into time slices between which other tasks run.

A handler whose work grows with the rows of its request is a generator: it yields after every few
rows (`in_pieces`), and its driver decides whether to continue at once. It is otherwise synchronous:
reads and changes between two yields are consistent, and a response shows each row as of the time at
which the row was read.

    started --finished within the slice of its connection--> answered
      '--the slice is over--> waits for memory --> waits for its turn <--> a slice --> answered

A slice is measured in CPU time of the event loop's thread. Requests that need more than the slice
of their connection share one slice per turn of the event loop, regardless of their number. At most
`UNDER_WAY_BYTES` of their frames are in progress at a time, smallest first; the other requests wait
as undecoded bytes, not as objects. The request that has waited longest is next once requests with
as many bytes as its own have overtaken it. A response waits for its turn, but not for memory.

Freeing many objects takes long, too: the lists, dicts and sets of a long request are not freed at
the end of a function but by `TimeSlicer.discard`, which empties them in slices of `DISCARD_CPU_S`,
one per turn of the event loop. That frees objects several times as fast as requests create them.
A piece of that work is limited by the rows that it frees at all depths: one row of a request may
hold most of the others.

Guaranteed: a turn of the event loop is delayed by one slice for all long requests together, by one
slice of `DISCARD_CPU_S`, and by the slices of the connections that received bytes in that turn. Not
guaranteed: that a long request is fast, or that all its rows are read at the same time.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

import trio

from metaquorum.dataplane.scheduling.request_memory import RequestMemory
from metaquorum.wire.schema.message import Struct

T = TypeVar("T")
S = TypeVar("S", str, tuple[str, int])
A = TypeVar("A")
B = TypeVar("B")

Work: TypeAlias = Generator[None, None, T]
Rows: TypeAlias = list[Any] | dict[Any, Any] | set[Any]
CallAfter: TypeAlias = Callable[[float, Callable[[], object]], object]

# Half of the longest slice (10 ms), because a piece of work may end after the slice does.
SLICE_CPU_S: Final = 0.005
# Rows between two checks of the clock; one row takes some microseconds.
PIECE_ROWS: Final = 64
# Rows freed between two checks of the clock; those within rows count, too.
FORGOTTEN_ROWS: Final = 1024
SORTED_ROWS: Final = 1000
# CPU seconds per turn of the event loop for background work, which no request waits for.
DISCARD_CPU_S: Final = 0.002
_END: Final[Any] = object()
# Frame bytes of long requests in progress; decoded, they take about ten times as much memory.
UNDER_WAY_BYTES: Final = 4 << 20


def in_pieces(
    rows: Iterable[A], work: Callable[[A], B], piece_rows: int = PIECE_ROWS
) -> Work[list[B]]:
    """Return the results of `work` for each row, in order; yield after every `piece_rows` rows."""
    left = iter(rows)
    done: list[B] = []
    while piece := list(islice(left, piece_rows)):
        done += map(work, piece)
        if len(piece) == piece_rows:
            yield
    return done


def each_once(rows: Iterable[A]) -> Work[list[A]]:
    """Return the rows without repetitions, in their order.

    A response then is at most as large as the state that it shows, however often a short request
    names a part of it.
    """
    once: dict[A, None] = {}
    yield from in_pieces(rows, lambda row: once.setdefault(row))
    return list(once)


def pieces(rows: Sequence[A]) -> Iterator[Sequence[A]]:
    for first in range(0, len(rows), PIECE_ROWS):
        yield rows[first : first + PIECE_ROWS]


def each_of(
    groups: Iterable[T], rows_of: Callable[[T], Iterable[A]], work: Callable[[T, A], B]
) -> Work[list[tuple[T, list[B]]]]:
    """Return, for each group (usually a topic), the results of `work` for each of its rows."""
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
    """Call `work` with each group and each of its rows."""
    left = PIECE_ROWS
    for group in groups:
        for row in chain(rows_of(group), (_END,)):
            left -= 1
            if not left:
                left = PIECE_ROWS
                yield
            if row is not _END:
                work(group, row)


def in_order(names: Iterable[S]) -> Work[Iterator[S]]:
    """Sort the names, or pairs of name and number, in runs; return an iterator that merges them."""
    left = iter(names)
    runs: list[list[S]] = []
    while run := sorted(islice(left, SORTED_ROWS)):
        runs.append(run)
        yield
    return merge(*runs)


def row_count(groups: Sequence[T], rows_of: Callable[[T], Sequence[A]]) -> int:
    """Return the number of groups and rows; the count stops once it exceeds PIECE_ROWS."""
    return sum([1 + len(rows_of(group)) for group in groups[: PIECE_ROWS + 1]])


class _Items(dict[type, Callable[[Iterable[Any]], Iterable[Any]] | None]):
    """Functions by class: each returns the items of its instances; None if they have none.

    The items of a Struct are its arrays, those of a dataclass or tuple its fields; a collection is
    its own item. Other objects have none: they may be parts of the node's state.
    """

    def __missing__(self, kind: type) -> Callable[[Iterable[Any]], Iterable[Any]] | None:
        if issubclass(kind, Struct):
            names = [field.name for field in kind.FIELDS if field.kind == "array"]
        elif not kind.__module__.startswith(_SHARED):
            names = list(getattr(kind, "__dataclass_fields__", ()))
        else:
            names = []
        if len(names) > 1:
            of_many, of_one = chain.from_iterable, attrgetter(*names)
            self[kind] = lambda rows: of_many(map(of_one, rows))
        elif names:
            self[kind] = partial(map, attrgetter(*names))
        elif issubclass(kind, tuple):
            self[kind] = chain.from_iterable
        else:
            self[kind] = iter if kind in _COLLECTIONS else None
        return self[kind]


_SHARED: Final = "metaquorum.metadata."  # parts of the metadata image: not freed
_COLLECTIONS: Final = frozenset((list, tuple, dict, set, frozenset))
_ITEMS: Final = _Items()


def _within(rows: Collection[Any]) -> list[Collection[Any]]:
    """Return the collections that the rows hold or are; of a dict, its values.

    A Struct in a tuple is not looked at: its message is freed on its own.
    """
    found: list[Collection[Any]] = []
    kinds = set(map(type, rows))
    for kind in kinds:
        if (items_of := _ITEMS[kind]) is not None:
            alike = rows if len(kinds) == 1 else [row for row in rows if type(row) is kind]
            found += [
                item.values() if type(item) is dict else item
                for item in items_of(alike)
                if type(item) in _COLLECTIONS
            ]
    return found


def rows_within(rows: Collection[Any]) -> int:
    """Return the number of rows that `rows` hold at all depths; exact up to FORGOTTEN_ROWS.

    Within a row, the rows of one collection are of one class. The caller limits `rows`.
    """
    found = _within(rows)
    count = sum(map(len, found))
    if found and count <= FORGOTTEN_ROWS:
        kinds = set(map(type, map(next, map(iter, filter(None, found)))))
        if any(_ITEMS[kind] is not None for kind in kinds):
            count += rows_within(list(chain.from_iterable(found)))
    return count


def emptied(rows: Rows, *, owns_rows: bool = False) -> Work[None]:
    """Empty `rows` in pieces. Freeing many objects takes half as long as creating them.

    `owns_rows`: nothing else uses what the rows hold. So a Struct with many rows is emptied, too.
    """
    take: Callable[[], Any] = rows.popitem if isinstance(rows, dict) else rows.pop
    while rows and _is_flat(rows):
        if isinstance(rows, list):
            del rows[-FORGOTTEN_ROWS:]
        else:
            for _ in range(min(FORGOTTEN_ROWS, len(rows))):
                take()
        yield
    left = FORGOTTEN_ROWS
    while rows:
        if isinstance(rows, list):
            some = rows[-PIECE_ROWS:]
            del rows[-PIECE_ROWS:]
        else:
            some = [take()[1] for _ in range(min(PIECE_ROWS, len(rows)))]
        count = len(some) + rows_within(some)
        one_by_one = count > FORGOTTEN_ROWS
        while some:
            if one_by_one:
                count = 1 + rows_within(some[-1:])
            if count > left:
                yield
                left = FORGOTTEN_ROWS
            if count > left and owns_rows and isinstance(some[-1], Struct):
                yield from emptied_message(some[-1])
            left -= count
            if one_by_one:
                some.pop()
            else:
                some.clear()
    yield


def _is_flat(rows: Rows) -> bool:
    """Return whether the next rows hold no rows; rows of one collection are alike."""
    if isinstance(rows, set):
        return True
    row = rows[-1] if isinstance(rows, list) else next(reversed(rows.values()))
    return _ITEMS[type(row)] is None if isinstance(row, Struct) else not _within((row,))


def emptied_message(message: Struct) -> Work[None]:
    """Empty the arrays of a message that nothing uses any longer, in pieces, if it has many rows.

    An array of a few rows may belong to the node's state: the message loses it, unchanged.
    """
    if rows_within((message,)) <= FORGOTTEN_ROWS:
        return
    for field in message.FIELDS:
        if field.kind != "array" or not (rows := getattr(message, field.name)):
            continue
        if len(rows) <= PIECE_ROWS:
            setattr(message, field.name, [])
            rows = list(rows)
        yield from emptied(rows, owns_rows=True)


def at_once(work: Work[T]) -> T:
    """Run short work to its end and return its result."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        value: T = done.value
        return value


class TimeSlicer:
    """Time slices of one event loop. `cpu_s` returns the CPU time of its thread.

    `call_after` schedules background work; without it, background work is done at once.
    """

    def __init__(
        self,
        cpu_s: Callable[[], float],
        under_way_bytes: int = UNDER_WAY_BYTES,
        call_after: CallAfter | None = None,
    ) -> None:
        self._cpu_s = cpu_s
        self._ends_s = 0.0
        self._turn = trio.Lock()  # first come, first served
        self._room = RequestMemory(under_way_bytes, ages=True)
        self._call_after = call_after
        self._background: deque[Work[Any]] = deque()

    def start(self) -> None:
        """Start a slice; its time counts from the first read of `is_over`, to save a clock call."""
        self._ends_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the slice is over and other tasks should run."""
        now = self._cpu_s()
        if not self._ends_s:
            self._ends_s = now + SLICE_CPU_S
        return now >= self._ends_s

    def run(self, work: Work[T]) -> tuple[T] | None:
        """Run `work` in this slice. Return its result in a tuple; None if the slice ends first."""
        try:
            while True:
                next(work)
                if self.is_over:
                    return None
        except StopIteration as done:
            return (done.value,)

    def discard(self, *rows: Rows) -> None:
        """Empty `rows` in the background; the caller must not use them again.

        Short ones are not emptied: they are freed with the last reference to them.
        """
        for some in rows:
            if len(some) > FORGOTTEN_ROWS or rows_within((some,)) > FORGOTTEN_ROWS:
                self.finish_in_background(emptied(some))

    @property
    def has_background_work(self) -> bool:
        """Whether any background work is unfinished."""
        return bool(self._background)

    def finish_in_background(self, work: Work[Any]) -> None:
        """Run `work` in slices of later turns of the event loop; the caller does not wait."""
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
        """Return the results of `work` for each row; without a wait if the rows are few."""
        return await self.do(in_pieces(rows, work), len(rows))

    async def do(self, work: Work[T], row_count: int) -> T:
        """Return the result of `work`; without a wait if `row_count` is at most PIECE_ROWS."""
        return at_once(work) if row_count <= PIECE_ROWS else await self.finish(work, 0)

    async def pause(self) -> None:
        """Let other tasks run if the slice is over; for a coroutine's loop over rows."""
        if self.is_over:
            async with self._turn:
                self.start()

    async def finish(self, work: Work[T], size_bytes: int) -> T:
        """Run `work` in slices and return its result; `size_bytes` is the size of its request."""
        await self._room.reserve(size_bytes)
        try:
            while True:
                async with self._turn:  # at least one turn of the event loop per slice
                    self.start()
                    done = self.run(work)
                if done is not None:
                    return done[0]
        finally:
            self._room.release(size_bytes)
