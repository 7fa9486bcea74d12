"""Parser of the arguments --from and --to: an offset, a time, earliest or latest."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping
from typing import Final

from metaquorum.spark.loader.errors import UsageError
from metaquorum.spark.loader.starting_points import (
    AtOffset,
    AtTime,
    Earliest,
    Ending,
    Latest,
    Starting,
)
from metaquorum.spark.offset_ranges import MAX_OFFSET

_AGO: Final = re.compile(r"(\d{1,12})(s|m|h|d)")
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_OFFSET: Final = re.compile(r"[0-9]{1,19}")


def parse_starting(text: str) -> Starting:
    """Return the parsed --from. Raises UsageError if it is invalid."""
    if text == "earliest":
        return Earliest()
    if text == "latest":
        raise UsageError("--from latest would load no record; specify another --from")
    return _parse(text, "earliest")


def parse_ending(text: str) -> Ending:
    """Return the parsed --to. Raises UsageError if it is invalid."""
    if text == "latest":
        return Latest()
    if text == "earliest":
        raise UsageError("--to earliest would load no record; specify another --to")
    return _parse(text, "latest")


def _parse(text: str, word: str) -> AtOffset | AtTime:
    if _OFFSET.fullmatch(text) and int(text) <= MAX_OFFSET:
        return AtOffset(int(text))
    if found := _AGO.fullmatch(text.removesuffix("ago").strip()):
        ms = int((time.time() - int(found[1]) * _SECONDS[found[2]]) * 1000)
        if ms >= 0:
            return AtTime(ms)
    try:
        ms = int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
        if ms >= 0:
            return AtTime(ms)
    except (ValueError, OverflowError, OSError):
        pass
    raise UsageError(
        f"{text[:100]!r} is neither an offset nor a time; write {word}, an offset, a time such as "
        "2026-01-31, 2026-01-31T10:30 or 2026-01-31T10:30Z, or an age such as 90s, 15m, 2h, 7d"
    )
