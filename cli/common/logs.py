"""Log lines on stderr: text, or one JSON object per line.

A client may cause the same unexpected error with every request: its traceback is logged once a
second, with the number of those that were left out.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from metaquorum.runtime.one_line import json_escaped, one_line

# Log lines may quote clients: long messages are truncated, and line ends in them are escaped.
MAX_MESSAGE_CHARS: Final = 2000
# Prefix of each line of a traceback, so that no such line looks like a log line.
TRACEBACK_INDENT: Final = "  | "

LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


# Lines of a traceback at its begin and its end; the others are left out.
FIRST_LINES: Final = 20
LAST_LINES: Final = 60
REPEATED_S: Final = 1.0  # interval between two tracebacks of one kind
MAX_KINDS: Final = 100


def shortened(text: str) -> str:
    left = len(text) - MAX_MESSAGE_CHARS
    return text if left <= 0 else f"{text[:MAX_MESSAGE_CHARS]}... ({left} more characters)"


def shortened_traceback(text: str) -> str:
    """Return the traceback without its middle, if it is long: that of a deep recursion."""
    lines = text.split("\n")
    left = len(lines) - FIRST_LINES - LAST_LINES
    if left <= 0:
        return text
    return "\n".join([*lines[:FIRST_LINES], f"... ({left} lines)", *lines[-LAST_LINES:]])


class RepeatedTracebacks(logging.Filter):
    """Drop records with a traceback of a kind that was logged within the last second.

    A kind is the type of the error and the place where it was raised. The next record of a kind
    says how many were dropped.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[object, tuple[float, int]] = {}  # time of the last one, dropped since

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        kind, now = _kind(error), self._now()
        logged_at, dropped = self._kinds.pop(kind, (None, 0))
        if logged_at is not None and now - logged_at < REPEATED_S:
            self._kinds[kind] = logged_at, dropped + 1
            return False
        if len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = now, 0
        if dropped:
            record.msg = f"{record.getMessage()} ({dropped} more like it were not logged)"
            record.args = ()
        return True


def _kind(error: BaseException) -> object:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = None if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
    return type(error), None if isinstance(error, RecursionError) else place


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(short_name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.short_name = record.name.rpartition(".")[2]
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = one_line(shortened(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        text = shortened_traceback(super().formatException(ei))
        return "\n".join(TRACEBACK_INDENT + one_line(line) for line in text.split("\n"))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return "\n".join(TRACEBACK_INDENT + one_line(line) for line in stack_info.split("\n"))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{stamp}.{int(record.msecs):03d}Z"


class JsonFormatter(TextFormatter):
    def __init__(self) -> None:
        super().__init__()
        import json  # importing it takes a millisecond

        self._dumps = json.dumps

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shortened(record.getMessage()),
        }
        if record.exc_info:
            text = logging.Formatter.formatException(self, record.exc_info)
            line["traceback"] = shortened_traceback(text)
        # JSON does not escape characters above ASCII, and some of these are line ends.
        text = self._dumps(line, ensure_ascii=False)
        return json_escaped(text)


def configure_logging(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatedTracebacks())
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # The level of the root, as in Kafka: clients that set or unset levels later find no others.
    root.setLevel(level.upper())
    logging.captureWarnings(True)
