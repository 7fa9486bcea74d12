"""ListConfigResources (74): the resources that can have configs. KIP-714, KIP-1142."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, Struct, array, int8, int16, int32, string


class ListConfigResourcesRequest(Message, api=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = array(int8, "1+")


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, api=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
