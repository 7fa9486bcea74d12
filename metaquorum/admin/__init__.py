"""Deprecated: the client library under its old name. Use `metaquorum.client`.

Importing it warns; it goes with the next release. Its modules are those of `metaquorum.client`,
some of which have other names there (`RENAMED`). No module of ours imports it. No I/O.
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
    """`metaquorum.admin.X` is the module of `metaquorum.client` itself, not a second copy of it."""

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
    "metaquorum.admin is now metaquorum.client; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
