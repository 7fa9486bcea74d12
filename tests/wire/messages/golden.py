"""Recorded exchanges with a real Kafka, which tests compare with this project's messages."""

import json
from pathlib import Path
from typing import Any

from metaquorum.wire.protocol.apis import ApiKey
from metaquorum.wire.protocol.headers import decode_response
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.schema.codec import decode

FOLDER = Path(__file__).parent / "golden_messages"


def exchanges(key: ApiKey, request: type[Any]) -> list[tuple[int, Any, Any]]:
    """Return the recorded exchanges: version, request and response of a real Kafka."""
    found = []
    for each in json.loads((FOLDER / f"{key.name.lower()}.json").read_text()):
        frame = bytes.fromhex(each["request"])
        _, body = decode_request_header(memoryview(frame))
        response = memoryview(bytes.fromhex(each["response"]))
        asked = decode(request, each["version"], frame[body:])
        found.append((each["version"], asked, decode_response(key, each["version"], response)[1]))
    return found


def in_any_order(rows: Any) -> list[str]:
    return sorted(repr(row) for row in rows)
