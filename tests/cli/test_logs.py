import io
import json
import logging

import pytest

from cli.logs import MAX_MESSAGE_CHARS, JsonFormatter, TextFormatter


def line(formatter: logging.Formatter, *message: object, exc: BaseException | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    info = None if exc is None else (type(exc), exc, exc.__traceback__)
    record = logging.LogRecord(
        "dataplane.server", logging.WARNING, "server.py", 1, message[0], message[1:], info
    )
    handler.emit(record)
    return stream.getvalue()


def test_a_text_line_says_when_how_bad_where_and_what() -> None:
    got = line(TextFormatter(), "refused %s", "somebody")
    stamp, level, name, *words = got.split()
    assert stamp.endswith("Z")
    assert (level, name, words) == ("WARNING", "server:", ["refused", "somebody"])


@pytest.mark.parametrize("text", ["a\nb", "a\r\n2026 INFO forged", "\x1b[2J", "\u2028", "\x00"])
def test_what_strangers_send_stays_within_its_line(text: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        got = line(formatter, "said %s", text)
        assert got.endswith("\n")
        assert len(got[:-1].split("\n")) == 1
        assert "\x1b" not in got
    assert json.loads(got)["message"] == f"said {text}"


def test_long_messages_are_cut() -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        got = line(formatter, "%s", "x" * 1_000_000)
        assert len(got) < MAX_MESSAGE_CHARS + 200
        assert "998000 more characters" in got


def test_a_traceback_is_part_of_its_json_line() -> None:
    try:
        raise ValueError("a bug")
    except ValueError as error:
        got = line(JsonFormatter(), "it ended", exc=error)
    row = json.loads(got)
    assert got.count("\n") == 1
    assert row["level"] == "warning"
    assert "ValueError: a bug" in row["traceback"]
    assert row["logger"] == "dataplane.server"
