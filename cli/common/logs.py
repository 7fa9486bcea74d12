"""Log lines on stderr: text, or one JSON object per line."""

import logging
import sys
import time
from typing import Any, Final

from metaquorum.runtime.one_line import UNSAFE, one_line

# Log lines may quote clients: long messages are truncated, and line ends in them are escaped.
MAX_MESSAGE_CHARS: Final = 2000
# Prefix of each line of a traceback, so that no such line looks like a log line.
TRACEBACK_INDENT: Final = "  | "

LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
PACKAGES: Final = ("wire", "metaquorum", "dataplane", "cli")


def shortened(text: str) -> str:
    left = len(text) - MAX_MESSAGE_CHARS
    return text if left <= 0 else f"{text[:MAX_MESSAGE_CHARS]}... ({left} more characters)"


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
        text = super().formatException(ei)
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
            line["traceback"] = logging.Formatter.formatException(self, record.exc_info)
        # JSON does not escape characters above ASCII, and some of these are line ends.
        text = self._dumps(line, ensure_ascii=False)
        return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def configure_logging(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)
