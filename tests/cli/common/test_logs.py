import io
import json
import logging

import pytest

from metaquorum.cli.common.logs import (
    FIRST_LINES,
    LAST_LINES,
    MAX_KINDS,
    MAX_MESSAGE_CHARS,
    REPEATED_S,
    TRACEBACK_INDENT,
    JsonFormatter,
    RepeatedTracebacks,
    TextFormatter,
    shortened_traceback,
)
from metaquorum.runtime.one_line import UNSAFE


def line(formatter: logging.Formatter, *message: object, exc: BaseException | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    info = None if exc is None else (type(exc), exc, exc.__traceback__)
    record = logging.LogRecord(
        "metaquorum.dataplane.network.server",
        logging.WARNING,
        "server.py",
        1,
        message[0],
        message[1:],
        info,
    )
    handler.emit(record)
    return stream.getvalue()


def test_a_text_line_says_when_how_bad_where_and_what() -> None:
    got = line(TextFormatter(), "refused %s", "somebody")
    stamp, level, name, *words = got.split()
    assert stamp.endswith("Z")
    assert (level, name, words) == ("WARNING", "server:", ["refused", "somebody"])


HOSTILE = [
    "a\nb",
    "a\r\n2026 INFO forged",
    "\x1b[2J",
    "\u2028",
    "\x00",
    "\x85",
    "\u202e",
    "\x0b\x1c",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_strangers_send_stays_within_its_line(text: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        got = line(formatter, "said %s", text)
        assert got.endswith("\n")
        assert len(got.splitlines()) == 1
        assert not UNSAFE.search(got[:-1])
    assert json.loads(got)["message"] == f"said {text}"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_line_of_a_traceback_can_be_taken_for_a_line_of_the_log(text: str) -> None:
    try:
        raise ValueError(f"no topic {text}\n2026-01-01T00:00:00.000Z INFO    server: forged")
    except ValueError as error:
        got = line(TextFormatter(), "a bug", exc=error)
        row = line(JsonFormatter(), "a bug", exc=error)
    first, *others = got.split("\n")[:-1]
    assert first.endswith("server: a bug")
    assert all(other.startswith(TRACEBACK_INDENT) for other in others)
    assert any("forged" in other for other in others)
    assert not any(UNSAFE.search(other) for other in others)
    assert len(row.splitlines()) == 1
    assert text in json.loads(row)["traceback"]


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
    assert row["logger"] == "metaquorum.dataplane.network.server"


def test_a_long_traceback_is_logged_without_its_middle() -> None:
    lines = [f"line {number}" for number in range(1000)]
    got = shortened_traceback("\n".join(lines)).split("\n")
    assert got[:FIRST_LINES] == lines[:FIRST_LINES]
    assert got[FIRST_LINES] == "... (920 lines)"
    assert got[FIRST_LINES + 1 :] == lines[-LAST_LINES:]
    assert shortened_traceback("\n".join(lines[:80])) == "\n".join(lines[:80])


def test_tracebacks_of_one_kind_are_logged_once_a_second_with_a_count() -> None:
    now = [100.0]
    limit = RepeatedTracebacks(lambda: now[0])

    def logged(error: BaseException | None) -> str | None:
        info = None if error is None else (type(error), error, error.__traceback__)
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "closed %s", ("it",), info)
        return record.getMessage() if limit.filter(record) else None

    def raised(kind: type[Exception]) -> Exception:
        try:
            raise kind("a client did this")
        except kind as error:
            return error

    assert logged(raised(ValueError)) == "closed it"
    assert [logged(raised(ValueError)) for _ in range(5)] == [None] * 5
    assert logged(raised(KeyError)) == "closed it"  # another type of error
    assert logged(ExceptionGroup("tasks", [raised(ValueError)])) is None
    assert logged(None) == "closed it"
    now[0] += REPEATED_S
    assert logged(raised(ValueError)) == "closed it (6 more like it were not logged)"
    now[0] += REPEATED_S
    assert logged(raised(ValueError)) == "closed it"
    for number in range(3 * MAX_KINDS):  # the memory is bounded
        assert logged(raised(type(f"Error{number}", (Exception,), {})))
    assert len(limit._kinds) == MAX_KINDS
