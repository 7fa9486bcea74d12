"""AlterMovePlan (10011): pauses, resumes, cancels or throttles a plan. An API of this project."""

from __future__ import annotations

from metaquorum.wire.schema.message import Message, int16, int32, int64, string


class AlterMovePlanRequest(Message, api=10011, versions="0", flexible="0+"):
    """`action`: pause, resume, cancel or throttle. `rate_bytes_per_s`: for throttle; -1: none."""

    timeout_ms: int = int32(default=60000)
    plan_id: int = int32()
    action: str = string()
    rate_bytes_per_s: int = int64(default=-1)


class AlterMovePlanResponse(Message, api=10011, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
