"""The compiled form of the code for small requests: the same results as the interpreted one."""

import os
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from metaquorum.dataplane.partition import batch_validation
from metaquorum.simulations.kernel import world
from metaquorum.simulations.runner.runs import run_seed
from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol import request_form
from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import encode_request
from metaquorum.wire.protocol.produce_one import FIRST_WITH_TOPIC_ID
from metaquorum.wire.records.batches import pack_batch, parse_header
from metaquorum.wire.records.walk_form import INTERPRETED
from tests.examples import examples
from tests.wire.protocol.test_produce_one import VERSIONS, request
from tests.wire.records.sample_batches import sample
from tests.wire.records.test_record_walk import mutated, some_records

HERE = request_form.INTERPRETED
BUILT = request_form.compiled()
# Scenarios whose clients produce in different ways; the others take minutes.
PLAYED = ("single-node-power", "hostile", "compaction", "replication", "groups", "transactions")
needs_compiled = pytest.mark.skipif(BUILT is None, reason="not compiled here")
# An unaligned start, and bytes behind the end that must not be read.
_BEFORE, _BEHIND = b"\7" * 3, b"\1" * 64


def within(data: bytes) -> memoryview:
    """Return a view of the data within other bytes, as the receive buffer has them."""
    whole = bytearray(_BEFORE + data + _BEHIND)
    return memoryview(whole)[len(_BEFORE) : len(_BEFORE) + len(data)]


def told(function: Any, *args: Any) -> Any:
    """Return the result with views as bytes, or the error and its text."""
    try:
        return plain(function(*args))
    except WireError as error:
        return type(error), str(error)


def plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(part) for part in value]
    return value


def some_frame(dice: random.Random) -> bytes:
    version = dice.choice(VERSIONS)
    records = [
        (dice.choice((0, 5, 2**31 - 1)), dice.randbytes(dice.choice((0, 1, 9, 120, 20_000))))
        for _ in range(dice.choice((0, 1, 1, 1, 3, 126)))
    ]
    message = request(version, "t" * dice.choice((1, 9, 126)), dice.choice((-1, 0, 1)), *records)
    message.transactional_id = dice.choice((None, "", "é" * dice.choice((1, 31, 63))))
    client = dice.choice((None, "", "client", "ö" * 200))
    api_key = dice.choice((ApiKey.PRODUCE,) * 4 + (ApiKey.METADATA,))
    frame = bytearray(
        encode_request(ApiKey.PRODUCE, version, dice.choice((7, -1)), client, message)
    )
    frame[4:6] = api_key.to_bytes(2, "big")
    return bytes(frame[4:])


def damaged(dice: random.Random, frame: bytes) -> bytes:
    """Damage the first bytes in most cases: the rest are mostly records."""
    if dice.random() < 0.3:
        return mutated(dice, frame)
    some = dice.randrange(len(frame) + 1) if dice.random() < 0.2 else 80
    return mutated(dice, frame[:some]) + frame[some:]


@needs_compiled
def test_requests_are_decoded_as_by_the_interpreted_form() -> None:
    assert BUILT is not None
    dice = random.Random(55)
    accepted = refused = 0
    errors = set()
    count = examples(6000).max_examples
    for _ in range(count):
        frame = some_frame(dice)
        if dice.random() < 0.9:
            frame = damaged(dice, frame)
        view = within(frame)
        header = told(HERE["decode_request_header"], view)
        assert told(BUILT["decode_request_header"], view) == header
        position, version = dice.randrange(len(frame) + 3), dice.choice(VERSIONS)
        if header[0] is WireError:
            errors.add(header[1].split(":")[1].rstrip("-0123456789"))
        elif dice.random() < 0.9:
            (_, (_, version, _, _)), position = header[1]
        one = told(HERE["decode_one"], view, position, version)
        assert told(BUILT["decode_one"], view, position, version) == one
        accepted += one is not None
        refused += one is None
    assert accepted > count // 12
    assert refused > count // 12
    assert len(errors) == 3


@needs_compiled
def test_every_cut_of_a_request_is_decoded_as_by_the_interpreted_form() -> None:
    assert BUILT is not None
    dice = random.Random(1)
    for _ in range(30):
        frame = some_frame(dice)[:400]
        for size in range(len(frame) + 1):
            view = within(frame[:size])
            header = told(HERE["decode_request_header"], view)
            assert told(BUILT["decode_request_header"], view) == header
            for version in (7, 9, 13):
                for position in (0, 10, size):
                    assert told(BUILT["decode_one"], view, position, version) == told(
                        HERE["decode_one"], view, position, version
                    )


@needs_compiled
def test_batches_are_checked_as_by_the_interpreted_form() -> None:
    assert BUILT is not None
    dice = random.Random(7)
    accepted = 0
    for _ in range(3000):
        count = dice.choice((1, 1, 2, 3, 70))
        records = some_records(dice, count)
        header = parse_header(sample(count))
        times = (-1, 0, header.max_timestamp, (1 << 63) - 1, -(1 << 63))
        if dice.random() < 0.2:
            header = header._replace(
                base_timestamp=dice.choice(times), max_timestamp=dice.choice(times)
            )
        if dice.random() < 0.3:
            records = mutated(dice, records)
        batch = bytes(pack_batch(header, records))
        if dice.random() < 0.3:
            batch = mutated(dice, batch)
        view = within(batch)
        found = told(HERE["plain_batch"], view)
        assert told(BUILT["plain_batch"], view) == found
        accepted += found is not None
    assert accepted > 100


@needs_compiled
def test_responses_are_encoded_as_by_the_interpreted_form() -> None:
    assert BUILT is not None
    dice = random.Random(3)
    numbers = (0, -1, 1, 2**31 - 1, 2**63 - 1, -(2**63))
    for _ in range(1000):
        rows = [
            (dice.choice((0, 3, 2**31 - 1)), *dice.choices(numbers, k=3))
            for _ in range(dice.choice((1, 1, 2, 126)))
        ]
        version = dice.choice(VERSIONS)
        topic = b"t" * (16 if version >= FIRST_WITH_TOPIC_ID else dice.choice((0, 1, 16, 249)))
        args = (
            version,
            dice.choice((0, -1, 2**31 - 1)),
            topic,
            rows,
            dice.choice((0, 99, 2**31 - 1)),
        )
        assert BUILT["encode_one"](*args) == HERE["encode_one"](*args)


@needs_compiled
@pytest.mark.parametrize("wrong", [bytes(100), None, memoryview(bytes(200))[::2]])
def test_the_compiled_form_reads_contiguous_views_only(wrong: Any) -> None:
    assert BUILT is not None
    for name in ("decode_request_header", "plain_batch"):
        with pytest.raises(TypeError):
            BUILT[name](wrong)
    if isinstance(wrong, memoryview):
        with pytest.raises(BufferError):
            BUILT["decode_one"](wrong, 0, 7)


@needs_compiled
def test_the_compiled_form_does_not_read_a_released_view() -> None:
    assert BUILT is not None
    view = memoryview(bytearray(100))
    view.release()
    for name, args in (("decode_request_header", ()), ("plain_batch", ()), ("decode_one", (0, 7))):
        with pytest.raises(ValueError, match="released"):
            BUILT[name](view, *args)


@needs_compiled
def test_the_compiled_form_is_of_the_source_that_is_here() -> None:
    """Fails if a source was changed after the build; `make` builds it again."""
    assert BUILT is not None
    shared = Path(request_form.__file__).parents[1] / "primitives/_reading.pxd"
    for function in HERE.values():
        source = Path(sys.modules[function.__module__].__file__ or "")
        package, name = function.__module__.rpartition(".")[::2]
        built = Path(sys.modules[f"{package}._{name}"].__file__ or "")
        if built.parent != source.parent or "site-packages" in source.parts:
            pytest.skip("the package is installed, not edited")
        for path in (source, source.with_name(f"_{name}.pxd"), shared):
            assert path.stat().st_mtime <= built.stat().st_mtime, f"{built} is older than {path}"


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["", "1"])
def test_the_environment_chooses_the_interpreted_form(switch: str) -> None:
    program = "from metaquorum.wire.protocol.request_form import form_name; print(form_name())"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, INTERPRETED: switch},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = "compiled" if BUILT is not None and not switch else "interpreted"
    assert result.stdout.strip() == expected


@needs_compiled
@pytest.mark.slow
@pytest.mark.parametrize("scenario", PLAYED)
def test_a_seed_has_the_same_trace_in_both_forms(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreted, _ = run_seed(scenario, 3)
    monkeypatch.setattr(world, "interpreted_forms", nullcontext)
    # The event loop validates longer batches in the compiled form, which moves times.
    limits = {
        "INLINE_COMPILED_RECORDS": batch_validation.INLINE_RECORDS,
        "MAX_OPENED_BYTES": batch_validation._MAX_INTERPRETED_BYTES,
    }
    for name, limit in limits.items():
        monkeypatch.setattr(batch_validation, name, limit)
    for name, function in (BUILT or {}).items():
        monkeypatch.setattr(request_form, name, function)
    compiled, _ = run_seed(scenario, 3)
    assert compiled.digest == interpreted.digest
    assert not compiled.violations
