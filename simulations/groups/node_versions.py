"""Versions of the software that the nodes of a cluster run while an operator upgrades them.

An old version is the shipped code, but it registers, and founds the cluster with, an earlier level
of metadata.version: level 3, before moves of partitions; level 2, before transactions, which does
not know transaction.version; or level 1, before groups. No old version serves the APIs of moves,
and none of their methods as a controller. Workers of level 1 prove no worker id to each other, do
not serve AuthenticateReplica, and believe every replica id. A version takes effect when a process
starts; no node returns to an old one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, overload

import metaquorum.dataplane.worker_server
import metaquorum.quorum.controller_server
from metaquorum.dataplane.handlers import api_versions
from metaquorum.dataplane.handlers.fetch import handler
from metaquorum.dataplane.network.replies import CloseConnectionError
from metaquorum.dataplane.replication import isr_manager, replica_fetcher
from metaquorum.dataplane.replication.replica_authentication import ReplicaAuthenticator
from metaquorum.metadata.batch import Batch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import METADATA_VERSION, TRANSACTION_VERSION, FeatureRange
from metaquorum.quorum.controller import features
from metaquorum.quorum.controller.features import SUPPORTED_FEATURES
from metaquorum.quorum.controller.internal_topics import GROUPS_LEVEL, TRANSACTIONS_LEVEL
from metaquorum.quorum.rpc import service
from metaquorum.quorum.rpc.methods import (
    ALTER_WORKER,
    APPEND_MOVES,
    CHANGE_MOVE_PLANS,
    CREATE_MOVE_PLAN,
    REASSIGN_PARTITIONS,
    Method,
)
from metaquorum.simulations.kernel.machine import Machine, running_process
from metaquorum.simulations.kernel.mutation import swapped
from metaquorum.simulations.kernel.process import Process
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import Api, ApiKey

OLD_LEVEL: Final = GROUPS_LEVEL - 1
OLD_LEVELS: Final = (OLD_LEVEL, TRANSACTIONS_LEVEL - 1)  # versions before transactions
# What no version before moves of partitions serves, as a worker and as a controller.
APIS_OF_MOVES: Final = (
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.ALTER_WORKER,
    ApiKey.START_MOVE_PLAN,
    ApiKey.ALTER_MOVE_PLAN,
    ApiKey.DESCRIBE_MOVE_PLANS,
)
METHODS_OF_MOVES: Final = (
    REASSIGN_PARTITIONS.name,
    CREATE_MOVE_PLAN.name,
    APPEND_MOVES.name,
    CHANGE_MOVE_PLANS.name,
    ALTER_WORKER.name,
)


def old_features(level: int) -> tuple[FeatureRange, ...]:
    """Return what the version supports whose highest level of metadata.version is `level`."""
    return tuple(
        FeatureRange(each.name, each.least, level) if each.name == METADATA_VERSION else each
        for each in SUPPORTED_FEATURES
        if each.name != TRANSACTION_VERSION or level >= TRANSACTIONS_LEVEL
    )


class NodeVersions:
    """Version of each node by its name: from which run of its process on it is new."""

    def __init__(self, old_level: int = OLD_LEVEL) -> None:
        """Create the versions; `old_level` is the highest level that the old one supports."""
        self.old_level = old_level
        self.old: set[str] = set()  # nodes that run the old version at first
        self._new_since: dict[str, int] = {}
        # Called with each batch that a process of the old version applies.
        self.applied: Callable[[Process, Batch], None] = lambda process, batch: None

    def install(self, machine: Machine) -> None:
        """Install the new version: the next process of the machine runs it."""
        self._new_since.setdefault(machine.name, machine.runs + 1)

    def is_old(self, name: str, run: int) -> bool:
        return name in self.old and run < self._new_since.get(name, run + 1)

    def is_old_process(self, process: Process | None) -> bool:
        return process is not None and self.is_old(process.name, process.number)

    def old_supports(self, feature: str, level: int) -> bool:
        """Return whether nodes of the old version support this level of a feature."""
        ranges = [each for each in old_features(self.old_level) if each.name == feature]
        return any(each.least <= level <= each.most for each in ranges)

    def is_before_groups(self, process: Process | None) -> bool:
        """Return whether the process runs a version that believes every replica id."""
        return self.old_level < GROUPS_LEVEL and self.is_old_process(process)

    @property
    def supported(self) -> tuple[FeatureRange, ...]:
        """Levels that the running process supports."""
        is_old = self.is_old_process(running_process.get())
        return old_features(self.old_level) if is_old else SUPPORTED_FEATURES


class _SupportedFeatures(Sequence[FeatureRange]):
    """The table of supported levels, of which each process sees those of its version."""

    def __init__(self, versions: NodeVersions) -> None:
        self._versions = versions

    def __len__(self) -> int:
        return len(self._versions.supported)

    def __iter__(self) -> Iterator[FeatureRange]:
        return iter(self._versions.supported)

    @overload
    def __getitem__(self, index: int) -> FeatureRange: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FeatureRange]: ...
    def __getitem__(self, index: int | slice) -> FeatureRange | Sequence[FeatureRange]:
        return self._versions.supported[index]


class _ServedApis:
    """The table of APIs, of which each process serves those of its version."""

    def __init__(self, versions: NodeVersions, apis: Mapping[int, Api]) -> None:
        self._versions = versions
        self._apis = apis

    def values(self) -> list[Api]:
        process = running_process.get()
        unknown: tuple[int, ...] = APIS_OF_MOVES if self._versions.is_old_process(process) else ()
        if self._versions.is_before_groups(process):
            unknown = (*unknown, ApiKey.AUTHENTICATE_REPLICA)
        return [each for each in self._apis.values() if each.key not in unknown]


class _KnownMethods:
    """The table of controllers' methods, of which each process knows those of its version."""

    def __init__(self, versions: NodeVersions, methods: Mapping[str, Method[Any, Any]]) -> None:
        self._versions = versions
        self._methods = methods

    def get(self, name: str) -> Method[Any, Any] | None:
        is_old = self._versions.is_old_process(running_process.get())
        return None if is_old and name in METHODS_OF_MOVES else self._methods.get(name)

    def values(self) -> Iterable[Method[Any, Any]]:
        return self._methods.values()


@contextmanager
def mixed_versions(versions: NodeVersions) -> Iterator[None]:
    """Let each process support, and register, the levels of its version while the block runs."""

    def registers(right: Any) -> Any:
        def registration(*values: Any, **more: Any) -> Any:
            return right(*values, **(more | {"features": versions.supported}))

        return registration

    def supports(right: Any) -> Any:
        return _SupportedFeatures(versions)

    def applies(right: Any) -> Any:
        async def apply(self: Any, term: int, batch: Batch) -> bool:
            took_effect: bool = await right(self, term, batch)
            process = running_process.get()
            if took_effect and process is not None and versions.is_old_process(process):
                versions.applied(process, batch)
            return took_effect

        return apply

    def is_first() -> bool:
        return versions.is_before_groups(running_process.get())

    def serves(right: Any) -> Any:
        return _ServedApis(versions, right)

    def closes(right: Any) -> Any:
        def respond(*values: Any) -> bytes:
            if is_first():
                raise CloseConnectionError("AuthenticateReplica is not served")
            token: bytes = right(*values)
            return token

        return respond

    def believes(right: Any) -> Any:
        def fetch_claim_error(*values: Any) -> ErrorCode:
            return ErrorCode.NONE if is_first() else right(*values)

        return fetch_claim_error

    def takes_for_earlier(right: Any) -> Any:
        return lambda *values: is_first() or right(*values)

    def proves_nothing(right: Any) -> Any:
        async def verifies_proofs(*values: Any) -> bool:
            verifies = await right(*values)
            return verifies and not is_first()

        return verifies_proofs

    with (
        swapped(api_versions, "APIS", serves),
        swapped(service, "METHODS", lambda right: _KnownMethods(versions, right)),
        swapped(ReplicaAuthenticator, "respond", closes),
        swapped(handler, "fetch_claim_error", believes),
        swapped(isr_manager, "is_earlier", takes_for_earlier),
        swapped(replica_fetcher, "verifies_proofs", proves_nothing),
        swapped(MetadataLoader, "apply", applies),
        swapped(features, "SUPPORTED_FEATURES", supports),
        swapped(api_versions, "SUPPORTED_FEATURES", supports),
        swapped(metaquorum.dataplane.worker_server, "WorkerRegistration", registers),
        swapped(metaquorum.quorum.controller_server, "ControllerRegistration", registers),
    ):
        yield
