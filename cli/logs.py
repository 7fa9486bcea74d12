"""Log lines on stderr: for people, or one JSON object a line."""

import json
import logging
import re
import sys
import time
from typing import Final

# Lines may quote what strangers sent: it is cut, and stays within its line.
MAX_MESSAGE_CHARS: Final = 2000
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

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
        record.message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], shortened(record.message))
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{stamp}.{int(record.msecs):03d}Z"


class JsonFormatter(TextFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shortened(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)
