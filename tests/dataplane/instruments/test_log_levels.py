"""Levels of loggers, in a hierarchy of their own."""

import itertools
import logging

import pytest

from metaquorum.dataplane.instruments.log_levels import LogLevels
from metaquorum.dataplane.instruments.log_rate_limit import ADDRESS_LINES


def loggers(*names: str) -> logging.Manager:
    manager = logging.Manager(logging.RootLogger(logging.INFO))
    for name in names:
        manager.getLogger(name)
    return manager


def levels(*names: str) -> LogLevels:
    return LogLevels(itertools.count(0.0, 10.0).__next__, loggers(*names))


def change(of: LogLevels, name: str, level: str | None) -> dict[str, str]:
    assert of.set({name: level}, "User:ops", "192.0.2.1")
    return of.in_force()


def test_every_logger_and_every_package_above_one_is_shown() -> None:
    shown = levels("a.b.c", "d").in_force()
    assert shown == dict.fromkeys(["a", "a.b", "a.b.c", "d", "root"], "INFO")
    assert list(shown) == sorted(shown)


def test_a_logger_without_a_level_has_that_of_the_next_one_above_it() -> None:
    of = levels("a.b.c", "a.b", "ab", "d")
    assert change(of, "a", "DEBUG") == {
        "a": "DEBUG",
        "a.b": "DEBUG",
        "a.b.c": "DEBUG",
        "ab": "INFO",
        "d": "INFO",
        "root": "INFO",
    }
    assert change(of, "a.b", "FATAL")["a.b.c"] == "FATAL"
    assert change(of, "a.b", None)["a.b.c"] == "DEBUG"
    assert change(of, "a", None)["a.b.c"] == "INFO"
    assert set(change(of, "root", "TRACE").values()) == {"TRACE"}


def test_no_logger_is_created_by_looking() -> None:
    manager = loggers("a.b")
    of = LogLevels(lambda: 0.0, manager)
    assert of.knows("a")
    assert not of.knows("x")
    assert not of.knows("")
    before = dict(manager.loggerDict)
    of.in_force()
    assert manager.loggerDict == before


def test_levels_are_those_at_which_lines_appear() -> None:
    manager = loggers("a")
    of = LogLevels(itertools.count(0.0, 10.0).__next__, manager)
    logger = manager.getLogger("a")
    for name, number in (
        ("FATAL", logging.CRITICAL),
        ("ERROR", logging.ERROR),
        ("WARN", logging.WARNING),
        ("INFO", logging.INFO),
        ("DEBUG", logging.DEBUG),
    ):
        assert change(of, "a", name)["a"] == name
        assert logger.isEnabledFor(number)
        assert not logger.isEnabledFor(number - 1)
    logger.setLevel(25)  # between INFO and WARN: lines of INFO do not appear
    assert of.in_force()["a"] == "INFO"


def test_a_change_that_is_not_logged_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    of = LogLevels(lambda: 0.0, loggers("a"))
    for _ in range(ADDRESS_LINES):
        assert of.set({"root": "FATAL", "a": "INFO"}, "User:ops", "192.0.2.1")
    assert len(caplog.records) == ADDRESS_LINES
    assert "root to FATAL, it was INFO; a to INFO, it was INFO" in caplog.records[0].getMessage()
    assert not of.set({"a": "DEBUG"}, "User:ops", "192.0.2.1")
    assert of.in_force()["a"] == "INFO"
    assert of.set({"a": "DEBUG"}, "User:ops", "192.0.2.2")
    assert of.in_force()["a"] == "DEBUG"
