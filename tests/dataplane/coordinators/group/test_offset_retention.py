"""When the offsets of a group expire: each condition of the group."""

import pytest

from metaquorum.dataplane.coordinators.group.offset_retention import (
    OffsetRetention,
    offset_retention,
)

HOUR_MS = 3_600_000


def retention(
    protocol_type: str | None,
    *,
    is_empty: bool = False,
    is_stable: bool = False,
    state_timestamp_ms: int | None = 500,
    subscribed: frozenset[str] | None = frozenset({"t"}),
) -> OffsetRetention | None:
    return offset_retention(
        protocol_type,
        is_empty=is_empty,
        is_stable=is_stable,
        state_timestamp_ms=state_timestamp_ms,
        subscribed=subscribed,
    )


@pytest.mark.parametrize("protocol_type", [None, ""])
def test_offsets_of_a_group_without_protocol_expire_after_their_commit(
    protocol_type: str | None,
) -> None:
    assert retention(protocol_type, is_empty=True) == OffsetRetention(None, ())


@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
def test_offsets_of_an_empty_group_expire_after_its_last_change(protocol_type: str) -> None:
    assert retention(protocol_type, is_empty=True) == OffsetRetention(500, ())


def test_offsets_of_an_empty_group_without_a_time_of_change_expire_after_their_commit() -> None:
    found = retention("consumer", is_empty=True, state_timestamp_ms=None)
    assert found == OffsetRetention(None, ())


def test_offsets_of_stable_consumers_expire_after_their_commit_without_subscription() -> None:
    assert retention("consumer", is_stable=True) == OffsetRetention(None, frozenset({"t"}))


def test_offsets_of_a_live_group_with_another_protocol_do_not_expire() -> None:
    assert retention("connect", is_stable=True) is None


def test_offsets_do_not_expire_while_subscriptions_are_unknown() -> None:
    assert retention("consumer", is_stable=True, subscribed=None) is None


def test_offsets_do_not_expire_in_a_rebalance() -> None:
    assert retention("consumer") is None


def test_an_offset_expires_at_the_end_of_its_retention() -> None:
    from_commit = OffsetRetention()
    assert not from_commit.is_expired(1000, -1, 1000 + HOUR_MS - 1, HOUR_MS)
    assert from_commit.is_expired(1000, -1, 1000 + HOUR_MS, HOUR_MS)


def test_an_offset_of_an_empty_group_expires_by_the_change_of_state_alone() -> None:
    from_change = OffsetRetention(5000)
    assert from_change.is_expired(5000 + HOUR_MS, -1, 5000 + HOUR_MS, HOUR_MS)
    assert not from_change.is_expired(0, -1, 5000 + HOUR_MS - 1, HOUR_MS)


@pytest.mark.parametrize("since_ms", [None, 0, 10**9])
def test_an_expiry_in_the_record_replaces_the_retention(since_ms: int | None) -> None:
    rule = OffsetRetention(since_ms)
    assert not rule.is_expired(0, 2 * HOUR_MS, 2 * HOUR_MS - 1, HOUR_MS)
    assert rule.is_expired(0, 2 * HOUR_MS, 2 * HOUR_MS, 10**12)
