"""The buckets of controller_mutation_rate that a controller keeps."""

import pytest

from metaquorum.metadata.quota_lookup import (
    CONTROLLER_MUTATION_RATE,
    QuotaEntity,
    SpecialName,
)
from metaquorum.quorum.controller import mutation_quotas
from metaquorum.quorum.controller.mutation_quotas import MutationQuotas, TokenBucket

QUOTAS = {QuotaEntity(client_id=SpecialName.DEFAULT): {CONTROLLER_MUTATION_RATE: 1.0}}


def test_a_debt_is_not_forgotten_for_clients_with_invented_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mutation_quotas, "MAX_BUCKETS", 20)
    quotas = MutationQuotas(samples=11, sample_s=1.0)

    def create(client_id: str, count: int, now: float) -> int:
        return quotas.take(QUOTAS, "u", client_id, [count], now, is_strict=True).count

    assert create("large", 1000, 0.0) == 1
    for number in range(100):
        assert create(f"invented-{number}", 1, 1.0) == 1
        assert len(quotas) <= 20
    assert create("large", 1, 2.0) == 0


def test_a_debt_remains_when_the_quota_is_removed_and_set_again() -> None:
    quotas = MutationQuotas(samples=11, sample_s=1.0)
    assert quotas.take(QUOTAS, "u", "c", [1000], 0.0, is_strict=True).count == 1
    assert quotas.take({}, "u", "c", [1000], 1.0, is_strict=True).count == 1
    assert quotas.take(QUOTAS, "u", "c", [1], 2.0, is_strict=True).throttle_s == 987.0


def test_a_bucket_that_nobody_uses_becomes_full_with_any_quota() -> None:
    """A product of floats that is divided again need not be the same."""
    for thirds in range(1, 3000):
        bucket = TokenBucket(thirds / 3, 0.0, 11, 1.0)
        bucket.take(5, thirds / 3, 0.0)
        assert not bucket.is_full(0.0)
        assert bucket.is_full(1000.0), thirds
