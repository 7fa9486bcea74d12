from random import Random

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.dataplane.log.segments.offset_map import ENTRY_BYTES, OffsetMap


@given(st.lists(st.binary(max_size=2), max_size=60), st.integers(1, 40))
def test_it_is_a_dict_until_it_is_full(keys: list[bytes], entries: int) -> None:
    offsets, model = OffsetMap(entries * ENTRY_BYTES, 0.9, 100), dict[bytes, int]()
    for offset, key in enumerate(keys):
        if not offsets.put(key, offset):
            assert key not in model
            assert len(model) == offsets.capacity
            break
        model[key] = offset
    assert offsets.size == len(model)
    assert {key: offsets.get(key) for key in keys} == {key: model.get(key, -1) for key in keys}


def test_an_entry_takes_24_bytes_and_nothing_else() -> None:
    offsets = OffsetMap(1 << 20, 0.9, 1 << 40)
    random = Random(3)
    while offsets.put(random.randbytes(20), 1):
        pass
    assert offsets.memory_bytes <= 1 << 20
    assert offsets.size == int((1 << 20) / 24 * 0.9)


def test_a_small_part_of_a_log_takes_a_small_map() -> None:
    assert OffsetMap(128 << 20, 0.9, 1000).memory_bytes < 30_000
