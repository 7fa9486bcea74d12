"""DeleteGroups (42): deletes empty groups. KIP-229."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, int16, int32, string


class DeleteGroupsRequest(Message, api=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
