"""Parsing and formatting of times."""

import datetime
import re
import time
from typing import Final

import click

_AGO: Final = re.compile(r"(\d{1,18})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NO_TIME: Final = -1
_EPOCH_DIGITS: Final = re.compile(r"\d{11,15}")


def time_value(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Parse a date, a date and time, milliseconds since 1970, or a time ago such as 15m.

    A callback for options. Returns milliseconds since 1970.
    """
    if text is None:
        return None
    found = _AGO.fullmatch(text.removesuffix("ago").strip())
    # Brokers give times before 1970 (negative numbers) another meaning.
    if found and (since := time.time() - int(found[1]) * _SECONDS[found[2]]) >= 0:
        return int(since * 1000)
    if _EPOCH_DIGITS.fullmatch(text):
        return int(text)
    try:
        at = datetime.datetime.fromisoformat(text).timestamp()
        if at < 0:
            raise ValueError("before 1970")
        return int(at * 1000)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is not a time; write 2026-01-31, 2026-01-31T10:30, 2026-01-31T10:30Z, "
            "milliseconds since 1970, or a time ago: 90s, 15m, 2h, 7d",
            ctx,
            parameter,
        ) from None


def iso_text(time_ms: int) -> str:
    """Return an ISO 8601 time in UTC with milliseconds; empty for no time (-1).

    A time outside of the years 1 to 9999, as in the records of some clients, stays a number.
    """
    if time_ms == NO_TIME:
        return ""
    try:  # a float of seconds would not be exact
        moment = _EPOCH + datetime.timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago_text(ms: int) -> str:
    """Return a readable time ago: 350 ms, 12.3 s, 4.5 min, 20.1 h or 9.3 d ago."""
    for size_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= size_ms:
            return f"{ms / size_ms:.1f} {unit} ago"
    return f"{ms} ms ago"
