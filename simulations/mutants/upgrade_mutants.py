"""Mutants of feature levels and of what needs them; a test of the same rule finds each, too."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.coordinators.group import group_coordinator
from metaquorum.dataplane.handlers import move_plans as plans_of_workers
from metaquorum.dataplane.handlers import quorum, reassignments
from metaquorum.dataplane.handlers.groups import coordinators
from metaquorum.dataplane.replication import earlier_workers
from metaquorum.dataplane.worker import internal_topics as workers_topics
from metaquorum.metadata.records import RecordEncoder, encode_record
from metaquorum.quorum.controller import (
    features,
    internal_topics,
    reassignment,
    worker_registration,
)
from metaquorum.quorum.controller.plans import move_plans
from metaquorum.simulations.kernel.mutation import Mutant, all_of, swapped


def _unchecked(_: Any) -> Any:
    def check_level(*values: Any) -> None: ...

    return check_level


def _level_of_groups_not_checked() -> AbstractContextManager[None]:
    return swapped(group_coordinator, "check_level", _unchecked)


def _internal_topics_at_every_level() -> AbstractContextManager[None]:
    return all_of(
        swapped(coordinators, "has_level", lambda _: lambda image, level: True),
        swapped(workers_topics, "needs_level", _unchecked),
        swapped(internal_topics, "check_level", _unchecked),
    )


def _nodes_not_asked(kind: str) -> AbstractContextManager[None]:
    """Raise a level that nodes whose display name begins with `kind` do not support."""

    def wrong(right: Any) -> Any:
        def _unsupported(update: Any, nodes: Any) -> Iterator[str]:
            yield from right(update, {n: r for n, r in nodes.items() if not n.startswith(kind)})

        return _unsupported

    return swapped(features, "_unsupported", wrong)


def _workers_not_asked() -> AbstractContextManager[None]:
    return _nodes_not_asked("Broker")


def _controllers_not_asked() -> AbstractContextManager[None]:
    return _nodes_not_asked("Controller")


def _earlier_worker_at_any_address() -> AbstractContextManager[None]:
    return swapped(earlier_workers, "normalized", lambda _: lambda host: "")


def _dependencies_of_levels_not_checked() -> AbstractContextManager[None]:
    return swapped(features, "_check_dependencies", _unchecked)


def _moves_at_every_level() -> AbstractContextManager[None]:
    return all_of(
        swapped(reassignments, "needs_level", _unchecked),
        swapped(reassignment, "check_level", _unchecked),
    )


def _plans_at_every_level() -> AbstractContextManager[None]:
    return all_of(
        swapped(plans_of_workers, "needs_level", _unchecked),
        swapped(move_plans, "check_level", _unchecked),
    )


def _drains_at_every_level() -> AbstractContextManager[None]:
    return all_of(
        swapped(quorum, "needs_level", _unchecked),
        swapped(worker_registration, "check_level", _unchecked),
    )


def _newest_record_versions() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        return lambda self, record: encode_record(record)

    return swapped(RecordEncoder, "encode", wrong)


UPGRADE_MUTANTS: Final = tuple(
    Mutant(name, about, "upgrades", found_as, apply)
    for name, about, found_as, apply in (
        (
            "level-of-groups-not-checked",
            "requests of groups are not refused at a level without groups",
            ("G5",),
            _level_of_groups_not_checked,
        ),
        (
            "internal-topics-at-every-level",
            "internal topics are created although old workers do not protect them",
            ("M7", "G5"),
            _internal_topics_at_every_level,
        ),
        (
            "workers-not-asked",
            "a level is raised although a worker does not support it",
            ("M7",),
            _workers_not_asked,
        ),
        (
            "dependencies-of-levels-not-checked",
            "transaction.version is raised at a level of metadata.version without transactions",
            ("M7",),
            _dependencies_of_levels_not_checked,
        ),
        (
            "controllers-not-asked",
            "a level is raised although another controller does not support it",
            ("M7",),
            _controllers_not_asked,
        ),
        (
            "earlier-worker-at-any-address",
            "a worker that is not upgraded replicates without a proof from any address",
            ("R5",),
            _earlier_worker_at_any_address,
        ),
    )
)

MOVES_LEVEL_MUTANTS: Final = tuple(
    Mutant(name, about, "upgraded-moves", ("M7",), apply)
    for name, about, apply in (
        (
            "moves-at-every-level",
            "moves are accepted at a level at which old nodes cannot read them",
            _moves_at_every_level,
        ),
        (
            "plans-at-every-level",
            "plans of moves are accepted at a level at which old nodes cannot read them",
            _plans_at_every_level,
        ),
        (
            "drains-at-every-level",
            "workers drain at a level at which old nodes cannot read that",
            _drains_at_every_level,
        ),
        (
            "newest-record-versions",
            "records are written in their newest version at every level",
            _newest_record_versions,
        ),
    )
)
