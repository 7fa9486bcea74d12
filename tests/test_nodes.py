"""Tests whose program is missing are skipped, except in CI."""

import pytest

from tests.nodes import skip_without


def test_a_missing_program_skips_a_test_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="java not installed"):
        skip_without("java not installed")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="java not installed; CI does not skip"):
        skip_without("java not installed")
