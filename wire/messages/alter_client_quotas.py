"""AlterClientQuotas (49): sets and removes quotas of users, client ids and addresses. KIP-546."""

from __future__ import annotations

from metaquorum.wire.schema.message import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int16,
    int32,
    string,
)


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(Message, api=49, versions="0-1", flexible="1+"):
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class AlteredEntry(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: list[EntityData] = array(EntityData)


class AlterClientQuotasResponse(Message, api=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    entries: list[AlteredEntry] = array(AlteredEntry)
