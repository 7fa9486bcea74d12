from metaquorum.dataplane.instruments.log_rate_limit import (
    ADDRESS_LINES,
    ADDRESS_LINES_PER_S,
    ALL_LINES,
    ALL_LINES_PER_S,
    MAX_ADDRESSES,
    LogRateLimiter,
)


def test_an_address_has_some_lines_at_once_and_then_one_now_and_again() -> None:
    limit = LogRateLimiter(0.0)
    said = [limit.take("a", 0.0) for _ in range(100)]
    assert said == [""] * ADDRESS_LINES + [None] * (100 - ADDRESS_LINES)
    assert limit.take("b", 0.0) == " (80 log lines were omitted before)"
    said = [limit.take("a", 10.0) for _ in range(100)]
    assert said == [""] * int(10 * ADDRESS_LINES_PER_S) + [None] * 90


def test_all_together_have_no_more_than_so_many_whoever_they_are() -> None:
    limit = LogRateLimiter(0.0)
    said = sum(limit.take(str(number), 0.0) is not None for number in range(5 * MAX_ADDRESSES))
    assert said == ALL_LINES
    said = sum(limit.take(str(number), 1.0) is not None for number in range(5 * MAX_ADDRESSES))
    assert said == ALL_LINES_PER_S
