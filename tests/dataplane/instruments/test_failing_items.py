"""Items of a loop that fail: back-off, and what is reported."""

from metaquorum.dataplane.instruments.failing_items import (
    MOST_RETRY_S,
    REPORT_AGAIN_S,
    FailingItems,
)


def test_an_error_is_reported_again_only_if_it_changes_or_after_a_long_time() -> None:
    failing: FailingItems[str] = FailingItems()
    assert failing.failed("a", "full", 0)
    assert not failing.failed("a", "full", 10)
    assert failing.failed("b", "full", 10)
    assert failing.failed("a", "busy", 20)
    assert not failing.failed("a", "busy", 19 + REPORT_AGAIN_S)
    assert failing.failed("a", "busy", 20 + REPORT_AGAIN_S)
    failing.succeeded("a")
    assert failing.failed("a", "busy", 21 + REPORT_AGAIN_S)


def test_the_time_to_the_next_attempt_doubles_up_to_a_bound() -> None:
    failing: FailingItems[str] = FailingItems()
    now, waits = 0.0, []
    for _ in range(100):
        failing.failed("a", "busy", now)
        began = now
        while not failing.is_due("a", now):
            assert failing.due(now) == []
            now += 1
        assert failing.due(now) == ["a"]
        waits.append(now - began)
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == MOST_RETRY_S
    assert failing.is_due("b", 0)


def test_items_that_are_gone_are_forgotten() -> None:
    failing: FailingItems[str] = FailingItems()
    for item in ("a", "b", "c"):
        failing.failed(item, "busy", 0)
    failing.keep(["b"])
    assert [item in failing for item in ("a", "b", "c")] == [False, True, False]
    assert len(failing) == 1
