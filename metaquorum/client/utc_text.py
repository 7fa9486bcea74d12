"""Times as text for explanations and reports."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc_text(time_ms: int) -> str:
    """Return the date and time in UTC, to a second; the number itself if it is out of range."""
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
