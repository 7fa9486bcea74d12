"""Simple model of the record walk: reads byte by byte and is slow."""

from dataclasses import dataclass, field


class Unsound(Exception):  # noqa: N818 - the verdict, not an error of the test
    pass


@dataclass
class Naive:
    """Expected result of a walk; `left` bytes are the start of an incomplete record."""

    records: int = 0
    left: int = 0
    low: int = 0
    high: int = 0
    null_keys: int = 0
    fields: list[tuple[int, ...]] = field(default_factory=list)


class _Reader:
    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def byte(self) -> int:
        if self.at >= self.end:
            raise Unsound
        self.at += 1
        return self.data[self.at - 1]

    def varint(self, max_bytes: int = 5, bits: int = 32) -> int:
        raw = 0
        for number in range(max_bytes):
            byte = self.byte()
            raw += (byte % 128) * 128**number
            if byte < 128:
                if raw >= 2**bits:
                    raise Unsound
                return -(raw + 1) // 2 if raw % 2 else raw // 2
        raise Unsound

    def skip(self, size: int, least: int) -> None:
        if size < least or self.at + max(0, size) > self.end:
            raise Unsound
        self.at += max(0, size)


def naive_walk(data: bytes, count: int, last_offset_delta: int, dense: bool) -> Naive:
    """Return the result for all `count` records, or the whole ones. Raises Unsound for others."""
    found = Naive()
    position, last = 0, -1
    while found.records < count:
        if len(data) - position < 7:
            break
        head = _Reader(data, position, len(data))
        length = head.varint()
        if not 6 <= length <= 1 << 27:
            raise Unsound
        if head.at + length > len(data):
            break
        record = _Reader(data, head.at, head.at + length)
        record.byte()
        timestamp = record.varint(10, 64)
        rest = record.at
        delta = record.varint()
        if delta <= last or delta > last_offset_delta or (dense and delta != last + 1):
            raise Unsound
        key_length = record.varint()
        key_at = record.at
        record.skip(key_length, -1)
        value_length = record.varint()
        value_at = record.at
        record.skip(value_length, -1)
        headers = record.varint()
        headers_at = record.at
        if not 0 <= headers <= (record.end - record.at) // 2:
            raise Unsound
        for _ in range(headers):
            record.skip(record.varint(), 0)
            record.skip(record.varint(), -1)
        if record.at != record.end:
            raise Unsound
        found.fields.append(
            (
                position,
                record.end,
                rest,
                delta,
                timestamp,
                key_at,
                key_length,
                value_at,
                value_length,
                headers_at,
                headers,
            )
        )
        found.low = min(found.low, timestamp) if found.records else timestamp
        found.high = max(found.high, timestamp) if found.records else timestamp
        found.null_keys += key_length < 0
        found.records += 1
        last = delta
        position = record.end
    found.left = len(data) - position
    if found.records == count and found.left:
        raise Unsound
    return found
