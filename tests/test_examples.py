"""Numbers of examples follow the profile, and the search for a smaller failing example ends."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from tests.conftest import MAX_SHRINKING_S
from tests.examples import examples

LEAST_CALLS = 20  # to make the example below as small as it can be


@pytest.fixture
def profile() -> Iterator[str]:
    """Restore the profile of this run after the test."""
    name = settings.get_current_profile_name()
    yield name
    settings.load_profile(name)


def test_a_number_of_examples_is_a_share_of_the_profile(profile: str) -> None:
    settings.load_profile("same")
    assert examples(200).max_examples == 200
    assert examples(200, stateful_step_count=7).stateful_step_count == 7
    assert examples(200).deadline is None
    assert examples(200).derandomize
    settings.load_profile("quick")
    assert examples(200).max_examples == 40
    assert examples(3).max_examples == 1


def calls_after_a_failure() -> int:
    """Return the calls of a failing test after its first failure."""
    failed: list[bool] = []

    @given(st.lists(st.integers(), min_size=5))
    @settings(database=None, derandomize=True)
    def fails(numbers: list[int]) -> None:
        if failed or sum(numbers) > 1000:
            failed.append(sum(numbers) > 1000)
        assert sum(numbers) <= 1000

    with pytest.raises(AssertionError):
        fails()
    return len(failed)


def test_shrinking_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.MAX_SHRINKING_SECONDS == MAX_SHRINKING_S
    assert calls_after_a_failure() > LEAST_CALLS
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", 0)
    assert calls_after_a_failure() < LEAST_CALLS
