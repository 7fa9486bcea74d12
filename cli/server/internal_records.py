"""The records of internal topics as plain data, for `mq-server log dump --keys`."""

import os
from typing import Any, Final, TypeAlias

from metaquorum.dataplane.coordinators.group.record_formats import (
    GroupKey,
    MalformedRecordError,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from metaquorum.dataplane.log.dump import Decode
from metaquorum.dataplane.log.segments.names import parse_partition_folder

Row: TypeAlias = dict[str, Any]


def decoder_for(path: str) -> Decode | None:
    """Return the decoder for a segment at `path`; None if it is not of an internal topic."""
    place = parse_partition_folder(os.path.basename(os.path.dirname(os.path.abspath(path))))
    return None if place is None else _DECODERS.get(place[0])


def _offsets_row(key: bytes | None, value: bytes | None) -> Row | None:
    try:
        found = decode_key(key or b"")
        if isinstance(found, OffsetKey):
            row: Row = {"type": "offset", **found._asdict()}
            if value is None:
                return row | {"deleted": True}
            fields = decode_offset_value(value)
            return row | {**fields._asdict(), "topic_id": fields.topic_id.hex()}
        if isinstance(found, GroupKey):
            row = {"type": "group", **found._asdict()}
            if value is None:
                return row | {"deleted": True}
            group = decode_group_value(value)
            return row | {
                "generation": group.generation,
                "protocol_type": group.protocol_type,
                "protocol": group.protocol,
                "leader": group.leader,
                "members": [member.member_id for member in group.members],
            }
    except MalformedRecordError as error:
        return {"malformed": str(error)}
    return None


_DECODERS: Final[dict[str, Decode]] = {"__consumer_offsets": _offsets_row}
