"""A mutant is found by the test of its rule, which passes without the mutant."""

from collections.abc import Callable

import pytest

from simulations.kernel.mutation import Mutant, mutated


def assert_fails_with(mutant: Mutant, test: Callable[[], object]) -> None:
    test()

    def fails() -> bool:
        try:
            test()
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails
            return True
        return False

    with mutated(mutant):
        assert fails()
