"""Partitions of groups and transactional ids, as Java computes them."""

import pytest

from metaquorum.dataplane.coordinators.partitioning import java_hash, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("console-consumer-12345", None),
        ("polygenelubricants", 0x8000_0000),  # Integer.MIN_VALUE
        ("é", 233),
        ("\U0001f600", 31 * 0xD83D + 0xDE00),  # two units
    ],
)
def test_the_hash_is_that_of_java(text: str, expected: int | None) -> None:
    assert expected is None or java_hash(text) == expected & 0xFFFF_FFFF


def test_a_long_id_is_hashed_as_its_definition_says() -> None:
    text = "group-" * 1000
    units = [ord(character) for character in text]
    expected = sum(unit * pow(31, len(units) - 1 - i, 1 << 32) for i, unit in enumerate(units))
    assert java_hash(text) == expected % (1 << 32)


def test_a_negative_hash_has_a_partition() -> None:
    # Integer.MIN_VALUE & 0x7fffffff is 0; Math.abs would be negative.
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("hello", 50) == 99_162_322 % 50
    assert all(0 <= partition_of(f"g{number}", 7) < 7 for number in range(100))


@pytest.mark.parametrize(
    ("group_id", "value", "partition"),
    [
        ("", 0, 0),
        ("console-consumer-12345", 158_455_506, 6),
        ("polygenelubricants", -(1 << 31), 0),
        ("Größe", 69_209_585, 35),
        ("\U0001f600-Gruppe", 587_105_541, 41),
        ("\U0001d11e\U0001d11e", 1_705_043_028, 28),
        ("\ud83d", 55_357, 7),
    ],
)
def test_hash_and_partition_are_those_that_a_jvm_printed(
    group_id: str, value: int, partition: int
) -> None:
    """`s.hashCode()` and `(s.hashCode() & 0x7fffffff) % 50` of OpenJDK 17."""
    assert java_hash(group_id) == value % (1 << 32)
    assert partition_of(group_id, 50) == partition
