"""The CSV of kafka-consumer-groups for offsets: read and written.

A line is topic,partition,offset for one group, or group,topic,partition,offset for several; without
a heading. All lines of a file are of the same kind.
"""

import csv
import io
from collections.abc import Iterable
from typing import Final, TypeAlias

from metaquorum.client.cluster import TopicPartition
from metaquorum.client.groups.reset import ResetPlan
from metaquorum.runtime.whole_numbers import whole_number

OffsetsByGroup: TypeAlias = dict[str, dict[TopicPartition, int]]

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_WITHOUT_GROUP: Final = 3
_WITH_GROUP: Final = 4


def read_offsets(text: str, groups: Iterable[str]) -> OffsetsByGroup:
    """Return the offsets of `groups` in the text of a file; lines of other groups are skipped.

    Raises ValueError, naming the line, if one is malformed, names a partition twice, or names no
    group although there are several.
    """
    wanted = list(dict.fromkeys(groups))
    found: OffsetsByGroup = {group: {} for group in wanted}
    rows = csv.reader(io.StringIO(text), strict=True)
    widths: set[int] = set()
    try:
        for row in rows:
            if not row:
                continue
            widths.add(len(row))
            group, where, offset = _parse(row, wanted, widths)
            if group not in found:
                continue
            if where in found[group]:
                raise ValueError(f"partition {where} occurs twice")
            found[group][where] = offset
    except (ValueError, csv.Error) as error:
        raise ValueError(f"line {rows.line_num}: {error}") from None
    return found


def _parse(row: list[str], groups: list[str], widths: set[int]) -> tuple[str, TopicPartition, int]:
    if len(row) not in (_WITHOUT_GROUP, _WITH_GROUP) or len(widths) > 1:
        raise ValueError(
            "every line must be topic,partition,offset or every line group,topic,partition,offset"
        )
    if len(row) == _WITHOUT_GROUP and len(groups) != 1:
        raise ValueError("there are several groups: write group,topic,partition,offset")
    group = row[0] if len(row) == _WITH_GROUP else groups[0]
    topic, index, offset = row[-3:]
    partition = whole_number(index, _INT32_MAX)
    if partition is None:
        raise ValueError(f"{index!r} is not a partition")
    number = whole_number(offset, _INT64_MAX)
    if number is None:
        raise ValueError(f"{offset!r} is not an offset")
    return group, TopicPartition(topic, partition), number


def offsets_text(plans: Iterable[ResetPlan], *, with_group: bool) -> str:
    """Return the new offsets of the plans as the text of a file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for plan in plans:
        for planned in plan.offsets:
            row = [planned.where.topic, planned.where.partition, planned.new]
            writer.writerow([plan.group, *row] if with_group else row)
    return text.getvalue()
