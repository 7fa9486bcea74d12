"""The record walk: both forms agree with the naive model, with and without fast paths."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.simulations.kernel.world import World
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.primitives.varint import write_varint
from metaquorum.wire.protocol import request_form
from metaquorum.wire.records import record_walk
from metaquorum.wire.records.batches import HEADER_BYTES
from metaquorum.wire.records.record_walk import RecordWalk, Span
from metaquorum.wire.records.records import Record, encode_batch
from metaquorum.wire.records.walk_form import INTERPRETED, compiled_walk, form_name
from tests.examples import examples
from tests.wire.records.naive_walk import Naive, Unsound, naive_walk

FORMS = [
    pytest.param(RecordWalk, id="interpreted"),
    pytest.param(
        compiled_walk(),
        id="compiled",
        marks=pytest.mark.skipif(
            compiled_walk() is None, reason="the record walk is not compiled here"
        ),
    ),
]

Sizes = Callable[[random.Random, int], int]


def _constant(size: int) -> Sizes:
    return lambda dice, index: size


def _between(least: int, most: int) -> Sizes:
    return lambda dice, index: dice.randint(least, most)


_KEYS: list[Sizes] = [
    _constant(-1), _constant(0), _constant(8), _constant(70), _between(-1, 12), _between(60, 68),
    lambda dice, index: 8 if index % 50 else 9,
]  # fmt: skip
_VALUES: list[Sizes] = [
    _constant(-1), _constant(0), _constant(5), _constant(100), _constant(1000), _between(-1, 3),
    _between(20, 180), _between(50, 80), _between(8100, 8300),
    lambda dice, index: 100 if index % 70 else 30,
]  # fmt: skip
_TIMES: list[Sizes] = [
    _constant(0), lambda dice, index: index, lambda dice, index: index * 200,
    lambda dice, index: index // 9, _between(-100, 100), _between(0, 1 << 30),
    _between(-(1 << 62), 1 << 62), _constant(-3),
]  # fmt: skip
_HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [
    (), (("", None),), (("trace", b"1" * 16), ("span", b"2" * 8)), (("long", b"v" * 100),),
    tuple((f"h{number}", b"") for number in range(20)),
]  # fmt: skip


def some_records(dice: random.Random, count: int) -> bytes:
    """Return the bytes of the records of a batch, of one of several shapes."""
    key, value, time = dice.choice(_KEYS), dice.choice(_VALUES), dice.choice(_TIMES)
    headers = dice.choice(_HEADERS)
    differing_headers = dice.random() < 0.1
    records = []
    for index in range(count):
        sizes = key(dice, index), value(dice, index)
        key_bytes, value_bytes = (None if size < 0 else b"x" * size for size in sizes)
        own_headers = dice.choice(_HEADERS) if differing_headers else headers
        timestamp = time(dice, index) if index else 0
        records.append(Record(index, timestamp, key_bytes, value_bytes, own_headers))
    return bytes(encode_batch(records))[HEADER_BYTES:]


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Return the data with some bytes changed, added, removed or moved."""
    changed = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 1, 2, 5))):
        at = dice.randrange(len(changed) + 1)
        kind = dice.randrange(6)
        if kind < 2 and at < len(changed):
            changed[at] ^= 1 << dice.randrange(8)
        elif kind == 2 and at < len(changed):
            changed[at] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif kind == 3:
            changed.insert(at, dice.choice((0, 1, 0x80, dice.randrange(256))))
        elif kind == 4:
            del changed[at : at + dice.choice((1, 1, 7, 200))]
        else:
            del changed[at:]
    return bytes(changed)


def _seen(walk: RecordWalk, data: bytes, left: int) -> tuple[int, ...]:
    return (
        walk.index, left, walk.min_timestamp_delta, walk.max_timestamp_delta, walk.null_keys
    )  # fmt: skip


def _expected(data: bytes, count: int, last: int, dense: bool) -> Naive | None:
    try:
        return naive_walk(data, count, last, dense)
    except Unsound:
        return None


def hold_against_the_naive_walk(
    form: type[RecordWalk], data: bytes, count: int, last: int, dense: bool, pieces: list[int]
) -> bool:
    """Compare all forms with the naive walk; return whether the records are valid."""
    expected = _expected(data, count, last, dense)
    spans: list[Span] = []
    for collect in (False, True):
        walk = form(count, last, dense)
        try:
            used = walk.spans(data, spans) if collect else walk.check(data)
            found = _seen(walk, data, len(data) - used)
        except WireError:
            found = None
        wanted = expected and (
            expected.records, expected.left, expected.low, expected.high, expected.null_keys
        )  # fmt: skip
        assert found == wanted
    if expected is not None:
        assert spans == expected.fields
    # The same in pieces
    walk = form(count, last, dense)
    rest = b""
    ends = [*sorted(pieces), len(data)]
    try:
        for start, end in zip([0, *ends], ends, strict=False):
            rest += data[start:end]
            rest = rest[walk.check(rest) :]
        walk.finish(len(rest))
        is_sound = True
    except WireError:
        is_sound = False
    assert is_sound == (expected is not None and expected.records == count and not expected.left)
    return is_sound


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_walk_gives_what_a_naive_one_gives(form: type[RecordWalk]) -> None:
    dice = random.Random(20)
    sound = 0
    for _ in range(1500):
        count = dice.choice((1, 2, 5, 64, 65, 130, 300))
        data = some_records(dice, count)
        if dice.random() < 0.7:
            data = mutated(dice, data)
        claimed = count + dice.choice((0, 0, 0, 0, 1, -1))
        dense = dice.random() < 0.9
        pieces = [dice.randrange(len(data) + 1) for _ in range(dice.randrange(4))]
        last = count - 1 + dice.choice((0, 0, 0, 5, -1))
        sound += hold_against_the_naive_walk(form, data, claimed, last, dense, pieces)
    assert 200 < sound < 1300


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=300), count=st.integers(0, 40), dense=st.booleans())
@examples(300)
def test_a_walk_over_random_bytes_gives_what_a_naive_one_gives(
    form: type[RecordWalk], data: bytes, count: int, dense: bool
) -> None:
    hold_against_the_naive_walk(form, data, count, 40, dense, [len(data) // 2])


def _plain(delta: bytes, value: bytes = b"", tail: bytes = b"\0") -> bytes:
    size = bytearray()
    write_varint(size, len(value))
    body = b"\0\0" + delta + b"\1" + bytes(size) + value + tail
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out) + body


@pytest.mark.parametrize("form", FORMS)
def test_varints_that_are_longer_than_they_need_be_are_read_alike(form: type[RecordWalk]) -> None:
    """Any record of a block may have such a varint, with any bytes after it."""
    dice = random.Random(5)
    for _ in range(400):
        rows = []
        count = dice.choice((20, 100))
        long_form = dice.random()
        for index in range(count):
            delta = bytearray()
            write_varint(delta, index)
            if dice.random() < long_form:
                delta[-1] |= 0x80
                delta.append(0)
            rows.append(_plain(bytes(delta), b"\0" * dice.choice((3, 3, 3, 4))))
        data = b"".join(rows)
        assert hold_against_the_naive_walk(form, data, count, count - 1, True, [])
        hold_against_the_naive_walk(form, mutated(dice, data), count, count - 1, True, [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"\xff" * 4 + b"\x10", "a varint is longer than 5 bytes or exceeds 32 bits"),
        (b"\x30\x00" + b"\xff" * 10, "a varint is longer than 10 bytes or exceeds 64 bits"),
    ],
)
def test_a_varint_that_is_too_large_is_named_with_its_limits(
    form: type[RecordWalk], record: bytes, said: str
) -> None:
    data = record + bytes(30)
    walk = form(1, 0, True)
    with pytest.raises(WireError, match=said):
        walk.finish(len(data) - walk.check(data))


def test_the_short_cuts_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an error in their conditions would only cost time and no test would fail."""
    dice = random.Random(1)

    def walked_one_by_one(values: Sizes) -> int:
        seen = 0
        walk_to = record_walk._walk_to

        def counting(walk: RecordWalk, data: bytes, position: int, stop_index: int) -> int:
            nonlocal seen
            before = walk.index
            result = walk_to(walk, data, position, stop_index)
            seen += walk.index - before
            return result

        records = [Record(i, i // 5, None, b"x" * values(dice, i)) for i in range(640)]
        with monkeypatch.context() as patch:
            patch.setattr(record_walk, "_walk_to", counting)
            walk = RecordWalk(640, 639, True)
            data = bytes(encode_batch(records))[HEADER_BYTES:]
            assert walk.check(data) == len(data)
        return seen

    assert walked_one_by_one(_constant(100)) < 25
    assert walked_one_by_one(_between(20, 180)) < 60


def test_the_compiled_form_says_what_the_interpreted_one_says() -> None:
    """The error texts are equal, too."""
    compiled = compiled_walk()
    if compiled is None:
        pytest.skip("the record walk is not compiled here")
    dice = random.Random(30)
    sentences = set()
    for _ in range(1500):
        count = dice.choice((1, 2, 70))
        data = mutated(dice, some_records(dice, count))
        said = []
        for form in (RecordWalk, compiled):
            walk = form(count, count - 1, True)
            try:
                walk.finish(len(data) - walk.check(data))
                said.append("")
            except WireError as error:
                said.append(str(error))
        assert said[0] == said[1]
        sentences.add(re.sub("[0-9]+", "", said[0]))
    assert len(sentences) > 10


def test_the_compiled_form_is_of_the_source_that_is_here() -> None:
    """Fails if the source was changed after the build; `make` builds it again."""
    compiled = compiled_walk()
    if compiled is None:
        pytest.skip("the record walk is not compiled here")
    built = Path(sys.modules[compiled.__module__].__file__ or "")
    source = Path(record_walk.__file__)
    if built.parent != source.parent or "site-packages" in source.parts:
        pytest.skip("the package is installed, not edited")
    for path in (source, source.with_name("_record_walk.pxd")):
        assert path.stat().st_mtime <= built.stat().st_mtime, f"{built} is older than {path}: make"


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["", "1"])
def test_the_environment_chooses_the_interpreted_form(switch: str) -> None:
    program = "from metaquorum.wire.records.walk_form import form_name; print(form_name())"
    environment = {**os.environ, INTERPRETED: switch}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    is_compiled = compiled_walk() is not None and not switch
    assert told.stdout.strip() == ("compiled" if is_compiled else "interpreted")


def test_the_simulator_runs_the_interpreted_form() -> None:
    world = World(1)
    seen: list[str] = []

    async def scenario(world: World) -> None:
        seen.extend((form_name(), request_form.form_name()))

    world.run(scenario)
    assert seen == ["interpreted", "interpreted"]
