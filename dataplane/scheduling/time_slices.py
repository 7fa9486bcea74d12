"""Long work on the event loop, divided into time slices between which other tasks run.

A handler whose work grows with the rows of its request is a coroutine that awaits `pause()` after
every few rows (`in_pieces`). That is its only slice point: reads and changes between two of them
are consistent unless the handler waits for something else, and a response shows each row as of the
time at which the row was read.

    where the coroutine runs          a pause
    a step in a callback (`run`)      suspends it if the slice is over; its connection's task then
                                      continues it
    a task                            lets other tasks run if the slice is over

In a step, a coroutine cannot wait for anything else: there is no task that could.

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
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextvars import ContextVar
from functools import partial
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from types import coroutine
from typing import Any, Final, TypeAlias, TypeVar

import trio

from metaquorum.dataplane.scheduling.request_memory import RequestMemory
from metaquorum.wire.schema.message import Struct

T = TypeVar("T")
S = TypeVar("S", str, tuple[str, int])
A = TypeVar("A")
B = TypeVar("B")

Steps: TypeAlias = Coroutine[Any, Any, T]
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


@coroutine
def pause() -> Generator[Any, Any, None]:
    """Let other tasks run if the slice is over: the only slice point of long work."""
    if _Stepping.is_on:
        yield
    else:
        slicer = _task_slicer.get()
        if slicer is None:
            yield from trio.lowlevel.checkpoint().__await__()
        elif slicer.is_over:
            yield from slicer.next_turn().__await__()


class _Stepping:
    is_on = False  # whether a coroutine is stepped, rather than awaited in a task


# The slicer of the tasks that this context belongs to.
_task_slicer: ContextVar["TimeSlicer | None"] = ContextVar("task slicer", default=None)


def step(work: Steps[T]) -> tuple[T] | None:
    """Run `work` to its next pause; return its result in a tuple if it has ended before."""
    outer, _Stepping.is_on = _Stepping.is_on, True
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        return (done.value,)
    finally:
        _Stepping.is_on = outer
    if waits_for is not None:
        work.close()
        raise RuntimeError(f"{work} has to be awaited in a task: it waits for {waits_for!r}")
    return None


@coroutine
def continued(work: Steps[T]) -> Generator[Any, Any, T]:
    """Return the result of a coroutine that was stepped before: `await` refuses one."""
    return (yield from work.__await__())


async def sliced(work: Generator[None, None, T]) -> T:
    """Return the result of a codec that yields after every few elements: it pauses there."""
    try:
        while True:
            next(work)
            await pause()
    except StopIteration as done:
        result: T = done.value
        return result


async def in_pieces(
    rows: Iterable[A], work: Callable[[A], B], piece_rows: int = PIECE_ROWS
) -> list[B]:
    """Return the results of `work` for each row, in order; pause after every `piece_rows` rows."""
    left = iter(rows)
    done: list[B] = []
    while piece := list(islice(left, piece_rows)):
        done += map(work, piece)
        if len(piece) == piece_rows:
            await pause()
    return done


async def each_once(rows: Iterable[A]) -> list[A]:
    """Return the rows without repetitions, in their order.

    A response then is at most as large as the state that it shows, however often a short request
    names a part of it.
    """
    once: dict[A, None] = {}
    await in_pieces(rows, lambda row: once.setdefault(row))
    return list(once)


def pieces(rows: Sequence[A]) -> Iterator[Sequence[A]]:
    for first in range(0, len(rows), PIECE_ROWS):
        yield rows[first : first + PIECE_ROWS]


async def each_of(
    groups: Iterable[T], rows_of: Callable[[T], Iterable[A]], work: Callable[[T, A], B]
) -> list[tuple[T, list[B]]]:
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
                await pause()
            if row is not _END:
                of_group.append(work(group, row))
    return done


async def for_each_of(
    groups: Iterable[T], rows_of: Callable[[T], Iterable[A]], work: Callable[[T, A], object]
) -> None:
    """Call `work` with each group and each of its rows."""
    left = PIECE_ROWS
    for group in groups:
        for row in chain(rows_of(group), (_END,)):
            left -= 1
            if not left:
                left = PIECE_ROWS
                await pause()
            if row is not _END:
                work(group, row)


async def in_order(names: Iterable[S]) -> Iterator[S]:
    """Sort the names, or pairs of name and number, in runs; return an iterator that merges them."""
    left = iter(names)
    runs: list[list[S]] = []
    while run := sorted(islice(left, SORTED_ROWS)):
        runs.append(run)
        await pause()
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


async def emptied(rows: Rows, *, owns_rows: bool = False) -> None:
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
        await pause()
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
                await pause()
                left = FORGOTTEN_ROWS
            if count > left and owns_rows and isinstance(some[-1], Struct):
                await emptied_message(some[-1])
            left -= count
            if one_by_one:
                some.pop()
            else:
                some.clear()
    await pause()


def _is_flat(rows: Rows) -> bool:
    """Return whether the next rows hold no rows; rows of one collection are alike."""
    if isinstance(rows, set):
        return True
    row = rows[-1] if isinstance(rows, list) else next(reversed(rows.values()))
    return _ITEMS[type(row)] is None if isinstance(row, Struct) else not _within((row,))


async def emptied_message(message: Struct) -> None:
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
        await emptied(rows, owns_rows=True)


def at_once(work: Steps[T]) -> T:
    """Run short work to its end and return its result."""
    while (done := step(work)) is None:
        pass
    return done[0]


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
        self._background: deque[Steps[Any]] = deque()

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

    def run(self, work: Steps[T]) -> tuple[T] | None:
        """Run `work` in this slice. Return its result in a tuple; None if the slice ends first."""
        while (done := step(work)) is None:
            if self.is_over:
                return None
        return done

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

    def finish_in_background(self, work: Steps[Any]) -> None:
        """Run `work` in slices of later turns of the event loop; the caller does not wait."""
        if self._call_after is None:
            at_once(work)
            return
        self._background.append(work)
        if len(self._background) == 1:
            self._call_after(0.0, self._work_in_background)

    def close(self) -> None:
        """Drop the background work: the node ends."""
        for work in self._background:
            work.close()
        self._background.clear()

    def _work_in_background(self) -> None:
        assert self._call_after is not None
        ends_s = self._cpu_s() + DISCARD_CPU_S
        while self._background:
            if step(self._background[0]) is not None:
                del self._background[0]
            if self._cpu_s() >= ends_s:
                break
        if self._background:
            self._call_after(0.0, self._work_in_background)

    def slice_this_task(self) -> None:
        """Let pauses in this task, and in the tasks that it starts, use slices of this slicer."""
        _task_slicer.set(self)

    async def next_turn(self) -> None:
        """Wait until no other long request has a slice, and start one."""
        async with self._turn:  # at least one turn of the event loop per slice
            self.start()

    async def pause(self) -> None:
        """Let other tasks run if the slice is over; for a task that does not have this slicer."""
        if self.is_over:
            await self.next_turn()

    async def finish(self, work: Steps[T], size_bytes: int) -> T:
        """Run `work` in slices and return its result; `size_bytes` is the size of its request."""
        try:
            await self._room.reserve(size_bytes)
            try:
                await self.next_turn()
                _task_slicer.set(self)
                return await continued(work)
            finally:
                self._room.release(size_bytes)
        except BaseException:
            work.close()
            raise
