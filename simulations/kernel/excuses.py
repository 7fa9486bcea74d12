"""Which ends of a program a bad disk can explain, and which are bugs whatever happened before."""

from collections.abc import Iterator
from typing import Final

from dataplane.node import NodeError
from metaquorum.metadata.replicated_log import RaftFatalError
from metaquorum.runtime.interfaces import StorageError

# `Node.run` raises NodeError for what it can say in a sentence; a voter alone, the others.
_EXPLAINED: Final = (NodeError, StorageError, RaftFatalError)


def bug_in(error: BaseException) -> BaseException | None:
    """The first exception of a group that no disk explains, as an AssertionError; None: all do.

    A node that cannot go on because of its disk says so in a sentence.
    """
    return next((one for one in _leaves(error) if not isinstance(one, _EXPLAINED)), None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
