"""Tests as coroutines whose first argument is made by a runner, and the others by pytest."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

# Attribute of the tests that start a simulated cluster.
IN_CLUSTER: Final = "in_cluster"

Test = Callable[..., Awaitable[None]]


def given_first(
    run: Callable[[Callable[[Any], Awaitable[None]]], object], **marks: object
) -> Callable[[Test], Callable[..., None]]:
    """Return a decorator: `run` is called with a scenario that passes its argument to the test.

    `marks` are attributes of the test that pytest runs.
    """

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def call(*values: object, **fixtures: object) -> None:
            run(lambda first: test(first, *values, **fixtures))

        signature = inspect.signature(test)
        left = list(signature.parameters.values())[1:]
        vars(call).update(marks, __signature__=signature.replace(parameters=left))
        return call

    return decorate
