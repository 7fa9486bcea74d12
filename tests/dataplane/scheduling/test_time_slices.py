"""Long work in time slices: a clock that the test plays measures the slices."""

import types
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metaquorum.dataplane.scheduling.time_slices import (
    DISCARD_CPU_S,
    FORGOTTEN_ROWS,
    SLICE_CPU_S,
    UNDER_WAY_BYTES,
    Steps,
    TimeSlicer,
    at_once,
    emptied,
    emptied_message,
    in_pieces,
    pause,
    rows_within,
    step,
)
from metaquorum.metadata.image import PartitionImage, TopicImage
from metaquorum.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from metaquorum.wire.primitives.frozen import frozen
from metaquorum.wire.schema.message import Struct, array, int32
from tests.dataplane.serving import batch_of, in_trio, serving
from tests.dataplane.stepped import stepped

LOOKS_PER_SLICE = 10


class Setting:
    """A clock that advances by a tenth of a slice at each reading."""

    def __init__(self, under_way_bytes: int = 1000) -> None:
        self.looks = 0
        self.slicer = TimeSlicer(self.cpu_s, under_way_bytes)
        self.told: list[str] = []

    def cpu_s(self) -> float:
        self.looks += 1
        return self.looks * SLICE_CPU_S / LOOKS_PER_SLICE

    async def work(self, name: str, pieces: int) -> str:
        for _ in range(pieces):
            self.told.append(name)
            await pause()
        return name

    async def finish(self, name: str, pieces: int, size_bytes: int = 1) -> None:
        assert await self.slicer.finish(self.work(name, pieces), size_bytes) == name
        self.told.append(f"{name}.")


def test_a_slice_ends_by_the_time_it_has_taken() -> None:
    setting = Setting()
    setting.slicer.start()
    assert setting.slicer.run(setting.work("a", 5)) == ("a",)
    assert setting.slicer.run(setting.work("b", 100)) is None
    assert 1 < len(setting.told) <= LOOKS_PER_SLICE + 2
    told = len(setting.told)
    assert setting.slicer.run(setting.work("c", 100)) is None  # the slice is over
    assert len(setting.told) == told + 1


def test_rows_are_worked_on_in_pieces_and_in_order() -> None:
    work = in_pieces(range(10), str, piece_rows=3)
    assert [step(work) for _ in range(3)] == [None] * 3
    assert at_once(in_pieces(range(10), str, piece_rows=3)) == [str(n) for n in range(10)]
    work.close()


def test_discarded_rows_are_freed_in_slices_and_not_by_the_caller() -> None:
    calls: list[Callable[[], object]] = []
    slicer = TimeSlicer(Setting().cpu_s, call_after=lambda _, call: calls.append(call))
    count = 20 * FORGOTTEN_ROWS
    rows, by_number, numbers = list(range(count)), dict.fromkeys(range(count)), set(range(count))

    def left() -> int:
        return len(rows) + len(by_number) + len(numbers)

    slicer.discard(rows, by_number, numbers)
    assert left() == 3 * count
    pieces_per_slice = LOOKS_PER_SLICE * DISCARD_CPU_S / SLICE_CPU_S + 1
    while slicer.has_background_work:
        before = left()
        calls.pop()()
        assert before - left() <= pieces_per_slice * FORGOTTEN_ROWS
    assert not left()
    assert not calls


def test_discarded_rows_that_are_few_are_left_to_their_last_reference() -> None:
    calls: list[Callable[[], object]] = []
    slicer = TimeSlicer(Setting().cpu_s, call_after=lambda _, call: calls.append(call))
    rows = list(range(FORGOTTEN_ROWS))
    slicer.discard(rows)
    assert not calls
    assert len(rows) == FORGOTTEN_ROWS


class Leaf(Struct):
    number: int = int32()

    def __del__(self) -> None:
        freed.append(self.number)


class Branch(Struct):
    leaves: list[Leaf] = array(Leaf)


class Tree(Struct):
    branches: list[Branch] = array(Branch)
    more: list[Branch] | None = array(Branch, nullable="0+", default=None)


@frozen
class Holder:
    name: str
    leaves: dict[str, Leaf]


freed: list[int] = []


def leaves(count: int) -> list[Leaf]:
    return [Leaf(number=number) for number in range(count)]


def most_freed_at_once(work: Steps[None]) -> int:
    """Run the work. Return the largest number of leaves that it freed in one piece."""
    largest = 0
    freed.clear()
    for _ in stepped(work):
        largest = max(largest, len(freed))
        freed.clear()
    return max(largest, len(freed))


def test_rows_are_counted_at_all_depths() -> None:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[1, 2, 3]) for _ in range(4)]
    transactions = [AddPartitionsToTxnTransaction(topics=list(topics)) for _ in range(5)]
    message = AddPartitionsToTxnRequest(transactions=transactions)
    assert rows_within((message,)) == 5 + 5 * 4 + 5 * 4 * 3
    assert rows_within((Tree(branches=[Branch(leaves=leaves(2)), Branch()]), Tree())) == 4
    assert rows_within(({"a": {1: 2, 3: 4}, "b": {}}, [7], "text", 5, None)) == 5
    assert rows_within((("topic", [1, 2]), Holder("name", {"a": Leaf()}))) == 3


def test_topics_of_the_metadata_image_are_not_counted() -> None:
    """The node keeps them: a walk over their partitions would free nothing."""
    partition = PartitionImage((1, 2), (1, 2), 1, 0, 0)
    topics = [TopicImage(f"t{n}", bytes(16), (partition,) * 100) for n in range(FORGOTTEN_ROWS)]
    assert rows_within(topics) == 0
    assert len(list(stepped(emptied(topics * 4)))) <= 4 + 1


def test_a_message_in_a_tuple_is_not_counted() -> None:
    """It is part of its request, which is freed on its own."""
    assert rows_within([(Branch(leaves=leaves(1000)), [1, 2])]) == 2


@pytest.mark.parametrize("shape", [(1, 20_000), (20, 1000), (140, 140), (1000, 20), (20_000, 1)])
def test_a_message_is_emptied_in_pieces_of_its_rows_at_all_depths(shape: tuple[int, int]) -> None:
    outer, inner = shape
    tree = Tree(
        branches=[Branch(leaves=leaves(inner)) for _ in range(outer)],
        more=[Branch(leaves=leaves(inner))],
    )
    assert 0 < most_freed_at_once(emptied_message(tree)) <= FORGOTTEN_ROWS
    assert not tree.branches
    assert not tree.more


def test_a_message_with_few_rows_is_left_to_its_last_reference() -> None:
    tree = Tree(branches=[Branch(leaves=leaves(30)) for _ in range(30)])
    assert not list(stepped(emptied_message(tree)))
    assert len(tree.branches) == 30


def test_short_arrays_that_belong_to_others_too_are_not_emptied() -> None:
    of_state, also = leaves(50), [Branch(leaves=leaves(2))]
    tree = Tree(branches=[Branch(leaves=of_state) for _ in range(3000)], more=also)
    at_once(emptied_message(tree))
    assert len(of_state) == 50
    assert len(also) == 1


def test_what_emptied_rows_hold_is_not_changed() -> None:
    """The caller may have given it to a response, or to the controller."""
    kept = leaves(2000)
    rows: list[Any] = [("topic", kept), [kept], Branch(leaves=kept), Holder("a", {"b": kept[0]})]
    at_once(emptied(rows))
    assert not rows
    assert len(kept) == 2000


def test_discarded_rows_are_few_only_with_the_rows_that_they_hold() -> None:
    calls: list[Callable[[], object]] = []
    slicer = TimeSlicer(Setting().cpu_s, call_after=lambda _, call: calls.append(call))
    by_name = {str(name): dict(enumerate(leaves(100))) for name in range(100)}
    pairs = [(str(name), leaves(100)) for name in range(100)]
    holders = [Holder("a", {str(n): Leaf() for n in range(100)}) for _ in range(100)]
    freed.clear()
    slicer.discard(by_name, pairs, holders)
    pieces_per_slice = LOOKS_PER_SLICE * DISCARD_CPU_S / SLICE_CPU_S + 1
    while calls:
        freed.clear()
        calls.pop()()
        assert len(freed) <= pieces_per_slice * FORGOTTEN_ROWS
    assert not by_name
    assert not pairs
    assert not holders


@in_trio
async def test_others_have_their_turn_between_two_slices_of_all_long_work() -> None:
    setting = Setting()
    counts: list[int] = []

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            counts.append(len(setting.told))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with trio.open_nursery() as working:
            for name in "abcde":
                working.start_soon(setting.finish, name, 60)
        nursery.cancel_scope.cancel()
    assert {name for name in setting.told if name.endswith(".")} == {f"{n}." for n in "abcde"}
    # The order within a turn of the event loop is random.
    assert max(b - a for a, b in pairwise(counts)) <= 2 * (LOOKS_PER_SLICE + 2)
    # All make progress: none ends before all have started.
    assert min(map(setting.told.index, ("a.", "b.", "c.", "d.", "e."))) > max(
        map(setting.told.index, "abcde")
    )


@in_trio
async def test_work_waits_for_room_and_the_smallest_goes_first() -> None:
    setting = Setting(under_way_bytes=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.finish, "first", 20 * LOOKS_PER_SLICE, 100)
        while not setting.told:
            await trio.lowlevel.checkpoint()
        for name, size in (("large", 90), ("small", 60), ("huge", 5000), ("middle", 70)):
            nursery.start_soon(setting.finish, name, 20, size)
    ended = [name for name in setting.told if name.endswith(".")]
    assert ended == ["first.", "small.", "middle.", "large.", "huge."]


@in_trio
async def test_smaller_requests_do_not_keep_a_large_one_waiting_for_ever() -> None:
    """The budget is always in use; requests overtake a waiting one by at most its size."""
    setting = Setting(under_way_bytes=100)
    large_bytes, small_bytes, enough = 1000, 60, 200

    async def small(nursery: trio.Nursery, number: int) -> None:
        if "large." in setting.told or number > enough:
            return
        nursery.start_soon(small, nursery, number + 1)
        await setting.finish(f"small {number}", 3 * LOOKS_PER_SLICE, small_bytes)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.finish, "first", 10 * LOOKS_PER_SLICE, small_bytes)
        while not setting.told:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(setting.finish, "large", 1, large_bytes)
        for _ in range(2):  # then it waits
            await trio.lowlevel.checkpoint()
        for _ in range(4):  # chains of requests: each starts the next one
            nursery.start_soon(small, nursery, 0)
    ended = [name for name in setting.told if name.endswith(".")]
    # Requests with as many bytes, the one that exceeds them, and two that started before it.
    assert ended.index("large.") <= large_bytes // small_bytes + 1 + 2


@in_trio
async def test_an_answer_does_not_wait_for_room_that_a_large_request_has() -> None:
    setting = Setting(under_way_bytes=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setting.finish, "large", 20 * LOOKS_PER_SLICE, 5000)
        while not setting.told:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(setting.finish, "answer", 1, 0)
    ended = [name for name in setting.told if name.endswith(".")]
    assert ended == ["answer.", "large."]


@pytest.mark.parametrize("when", ["waits", "works"])
@in_trio
async def test_work_that_is_cancelled_leaves_room_and_turn_to_others(when: str) -> None:
    setting = Setting(under_way_bytes=100)

    async def endless() -> None:
        while True:
            await pause()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(setting.finish, "before", 500, 100)
            if when == "works":
                await trio.sleep(0)
            scope.cancel()
            await setting.slicer.finish(endless(), 100)
        await setting.finish("after", 50, 100)
    assert [name for name in setting.told if name.endswith(".")] == ["before.", "after."]


@in_trio
async def test_what_is_done_is_answered_while_other_requests_are_under_way(tmp_path: Path) -> None:
    """A producer without a response would resend appended records; others may run forever."""
    batch = batch_of(bytes(UNDER_WAY_BYTES))

    async def endless() -> None:
        while True:
            await pause()

    async with serving(tmp_path) as served, trio.open_nursery() as nursery:
        client = await served.connect()
        await client.create("t", max_message_bytes=2 * len(batch))
        nursery.start_soon(served.worker.slicer.finish, endless(), 1)
        row = await client.produce("t", batch)
        assert row.base_offset == 0
        nursery.cancel_scope.cancel()


# Where a coroutine runs


async def paused(times: int, told: list[int]) -> str:
    for number in range(times):
        told.append(number)
        await pause()
    return "done"


@in_trio
async def test_a_pause_in_a_task_without_a_slicer_lets_others_run() -> None:
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paused, 100, told)
        assert await paused(10, []) == "done"
        assert 0 < len(told) < 100


@in_trio
async def test_a_pause_in_a_task_waits_for_a_turn_once_the_slice_is_over() -> None:
    setting = Setting()
    setting.slicer.slice_this_task()
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paused, 10 * LOOKS_PER_SLICE, told)
        while not told:
            await trio.lowlevel.checkpoint()
        assert 1 < len(told) < 10 * LOOKS_PER_SLICE


@in_trio
async def test_a_coroutine_that_was_stepped_goes_on_in_a_task_and_may_wait_there() -> None:
    setting, told, event = Setting(), list[int](), trio.Event()

    async def both() -> str:
        await paused(3, told)
        await event.wait()
        return await paused(2, told)

    work = both()
    assert step(work) is None
    assert told == [0]
    async with trio.open_nursery() as nursery:

        async def wake() -> None:
            while len(told) < 3:
                await trio.lowlevel.checkpoint()
            event.set()

        nursery.start_soon(wake)
        assert await setting.slicer.finish(work, 1) == "done"
    assert told == [0, 1, 2, 0, 1]


def test_a_coroutine_that_waits_while_it_is_stepped_is_refused_and_closed() -> None:
    told: list[str] = []

    @types.coroutine
    def trap() -> Iterator[str]:
        yield "a wait of trio"

    async def waits() -> None:
        try:
            await trap()
        finally:
            told.append("closed")

    for drive in (step, at_once, TimeSlicer(Setting().cpu_s).run):
        with pytest.raises(RuntimeError, match=r"waits.*has to be awaited in a task.*trio"):
            drive(waits())
    assert told == ["closed"] * 3
    assert at_once(paused(2, [])) == "done"  # the flag of steps is as before


@pytest.mark.parametrize("is_stepped", [False, True])
@in_trio
async def test_work_that_is_cancelled_in_its_turn_is_cancelled_where_it_pauses(
    is_stepped: bool,
) -> None:
    setting, told = Setting(), list[str]()

    async def endless() -> None:
        try:
            while True:
                await pause()
        except trio.Cancelled:
            told.append("cancelled")
            raise

    work = endless()
    if is_stepped:
        step(work)
    with trio.move_on_after(0.01) as scope:
        await setting.slicer.finish(work, 1)
    assert scope.cancelled_caught
    assert told == ["cancelled"]


@in_trio
async def test_short_work_is_stepped_within_a_task_that_pauses() -> None:
    async def outer() -> list[str]:
        found = [at_once(paused(3, []))]
        await pause()
        found.append(await paused(1, []))
        return found

    assert await outer() == ["done", "done"]
    assert at_once(outer()) == ["done", "done"]


def test_work_in_the_background_is_dropped_when_the_node_ends() -> None:
    slicer = TimeSlicer(Setting().cpu_s, call_after=lambda _, call: None)
    slicer.finish_in_background(paused(1, []))
    slicer.close()
    assert not slicer.has_background_work
