"""Deprecated: the client library under its old name. Use `metaquorum.client`.

The import raises a DeprecationWarning; the next release removes this package. Its modules are those
of `metaquorum.client`, some under older names (`RENAMED`). No other module imports it. No I/O.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final
from warnings import warn

from metaquorum.client import (
    AdminError,
    BrokerError,
    Cluster,
    InterruptedChangeError,
    Login,
    Node,
    NotServedError,
    Security,
    ThrottleTimes,
    Tls,
    TopicPartition,
    UnreachableError,
    connect,
)

__all__ = [
    "AdminError",
    "BrokerError",
    "Cluster",
    "InterruptedChangeError",
    "Login",
    "Node",
    "NotServedError",
    "Security",
    "ThrottleTimes",
    "Tls",
    "TopicPartition",
    "UnreachableError",
    "connect",
]

RENAMED: Final = {
    "blocking": "socket_transport",
    "explaining": "topic_survival",
    "seams": "trio_transport",
}


class _OldNames(MetaPathFinder, Loader):
    """Import hook: `metaquorum.admin.X` is the module object of `metaquorum.client`, not a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, _ = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = import_module(f"metaquorum.client.{RENAMED.get(name, name)}")


if not any(type(finder).__name__ == _OldNames.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_OldNames())
warn(
    "metaquorum.admin is now metaquorum.client; the next release removes the old name",
    DeprecationWarning,
    stacklevel=2,
)
