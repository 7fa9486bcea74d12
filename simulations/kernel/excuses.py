"""Distinction between bugs and exits of a program that a disk failure explains."""

from collections.abc import Iterator
from typing import Final

from metaquorum.dataplane.node import NodeError
from metaquorum.metadata.replicated_log import RaftFatalError
from metaquorum.runtime.interfaces import StorageError

# `Node.run` raises NodeError with an explanation; a program with only a voter raises the others.
_EXPLAINED: Final = (NodeError, StorageError, RaftFatalError)


def bug_in(error: BaseException) -> BaseException | None:
    """Return the first exception in `error`, perhaps a group, that no disk failure explains.

    None if there is no such exception. A node whose disk fails exits with an error that names the
    failure; an AssertionError, for example, is a bug.
    """
    return next((one for one in _leaves(error) if not isinstance(one, _EXPLAINED)), None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
