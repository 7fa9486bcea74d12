"""The driver: plan, run, commit, publish. Whatever it finds half done it goes on with.

    make plan N        created exclusively: of two drivers one has its ranges
    run its ranges     those without a result; results are created exclusively, too
    write the report   of all results
    commit N           the manifest is created exclusively: the load is part of the table
    publish N          staged files move to their places; the rest of that folder is deleted

`recovery` says what is next from what is there; so a load that died is gone on with by running it
again, and there is no other way to recover.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Final, Protocol

from metaquorum.spark.loader.errors import RangesFailedError, RefusedError
from metaquorum.spark.loader.runner import Runner
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import staging_folder
from metaquorum.spark.loader.table.load_plan import LoadPlan, TableSettings
from metaquorum.spark.loader.table.manifest import Manifest, check_continues, next_manifest
from metaquorum.spark.loader.table.range_result import RangeResult
from metaquorum.spark.loader.table.recovery import (
    Listing,
    MakePlan,
    Publish,
    RunPlan,
    garbage,
    next_step,
)
from metaquorum.spark.loader.tasks.range_task import TaskProgress
from metaquorum.spark.loader.tasks.task_spec import RangeTask, TaskContext
from metaquorum.spark.offset_ranges import ReadPlan
from metaquorum.spark.options import FetchOptions
from metaquorum.spark.value_schemas import RegistryAuth
from wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

MAX_SHOWN_FAILURES: Final = 3
# Of a request: a plan that is unfinished is finished with its own.
LIMITS: Final = frozenset(("from", "to"))


class Planner(Protocol):
    """The cluster, as far as plans are concerned."""

    def make(self, previous: Manifest | None) -> ReadPlan | None:
        """What there is to load behind the newest manifest; None: nothing."""

    def check(self, plan: LoadPlan) -> None:
        """That the cluster and the topics are those of the plan. RefusedError."""


@frozen
class LoadRequest:
    """What was asked for; `request` in words that a later run can compare."""

    output: str
    request: Mapping[str, Any]
    settings: TableSettings
    fetch: FetchOptions
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry_auth: RegistryAuth | None = field(default=None, repr=False)
    discard_unfinished: bool = False
    has_own_client_id: bool = False  # or else that of the plan, also where another run made it

    def client_id(self, plan: LoadPlan) -> str:
        """The same for all runs of a load, unless one was given."""
        return self.fetch.connecting.client_id if self.has_own_client_id else plan.client_id


@frozen
class LoadOutcome:
    """`manifest` None: there was nothing to load. `resumed`: an earlier run had begun.

    `is_as_asked`: False where that run had other limits, as a nightly load has; they were kept.
    """

    manifest: Manifest | None
    results: tuple[RangeResult, ...]
    resumed: bool
    client_id: str
    is_as_asked: bool = True


class Events:
    """What a driver tells while it works; each method may be overridden."""

    def on_plan(self, plan: LoadPlan, done: int) -> None:
        """The plan's ranges are about to be run, but for `done` that have results."""

    def on_range(self, index: int, what: TaskProgress | RangeResult) -> None:
        """How far an attempt at the range is, or what became of the range."""

    def on_committed(self, manifest: Manifest) -> None:
        """The load is part of the table."""


def new_driver_id() -> str:
    return secrets.token_hex(8)


def run_load(
    table: Table,
    request: LoadRequest,
    planner: Planner,
    runner: Runner,
    *,
    driver_id: str,
    events: Events | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> LoadOutcome:
    """One load is committed and published: the one that was unfinished, or else a new one.

    The caller has opened the table and holds its lock. LoaderError, or what the planner raises.
    """
    events = events or Events()
    while True:
        listing = table.listing()
        newest = table.newest(listing)
        step = next_step(listing, newest)
        if isinstance(step, Publish):
            assert newest is not None
            table.make_commits_durable()
            table.publish(newest)
            continue
        if isinstance(step, RunPlan):
            plan = table.plan(step.version)
            if request.discard_unfinished:
                table.discard_plan(plan)
                continue
            _check_request(plan, request)
            planner.check(plan)
        else:
            made = _make_plan(table, request, planner, newest, step)
            if made is None:
                _sweep(table, listing, newest, None)
                return LoadOutcome(None, (), False, request.fetch.connecting.client_id)
            plan = made
        _sweep(table, listing, newest, plan.plan_id)
        check_continues(newest, plan)
        results = _run_ranges(table, plan, request, runner, events)
        manifest = _commit(table, newest, plan, results, driver_id, now_ms())
        events.on_committed(manifest)
        table.publish(manifest)
        return LoadOutcome(
            manifest,
            tuple(results),
            isinstance(step, RunPlan),
            request.client_id(plan),
            is_as_asked=plan.request == request.request,
        )


def _check_request(plan: LoadPlan, request: LoadRequest) -> None:
    """That the unfinished plan is of what is asked for now, from wherever to wherever."""
    changed = sorted(
        name
        for name in {*plan.request, *request.request} - LIMITS
        if plan.request.get(name) != request.request.get(name)
    )
    if plan.settings != request.settings:
        changed.append("the settings of the files")
    if changed:
        raise RefusedError(
            f"load {plan.version} is unfinished, and was asked for otherwise (it differs in "
            f"{', '.join(changed)}); run the same command again to finish it, or give "
            "--discard-unfinished to forget it"
        )


def _make_plan(
    table: Table,
    request: LoadRequest,
    planner: Planner,
    newest: Manifest | None,
    step: MakePlan,
) -> LoadPlan | None:
    read_plan = planner.make(newest)
    if read_plan is None:
        return None
    plan = LoadPlan(
        version=step.version,
        plan_id=secrets.token_hex(8),
        request=request.request,
        settings=request.settings,
        read_plan=read_plan,
        client_id=request.fetch.connecting.client_id,
    )
    check_continues(newest, plan)
    try:
        table.create_plan(plan)
    except FileExistsError:
        raise RefusedError(
            f"another driver has planned load {step.version} of {table.storage.url} at this "
            "moment; wait for its end, and run the load again"
        ) from None
    return plan


def _sweep(table: Table, listing: Listing, newest: Manifest | None, plan_id: str | None) -> None:
    """What a load left that nobody will go on with. The newest manifest is published."""
    for folder in garbage(listing, newest, plan_id):
        table.storage.delete_folder(folder)


def _run_ranges(
    table: Table, plan: LoadPlan, request: LoadRequest, runner: Runner, events: Events
) -> list[RangeResult]:
    results = table.results(plan)
    events.on_plan(plan, len(results))
    ranges = plan.read_plan.ranges
    pending = [
        RangeTask(index, range_, plan.read_plan.topics[range_.topic].is_compacted)
        for index, range_ in enumerate(ranges)
        if index not in results
    ]
    if pending:
        connecting = replace(request.fetch.connecting, client_id=request.client_id(plan))
        context = TaskContext(
            request.output,
            staging_folder(plan.version, plan.plan_id),
            replace(request.fetch, connecting=connecting),
            request.settings,
            request.storage_options,
            request.registry_auth,
        )

        def on_event(index: int, what: TaskProgress | RangeResult) -> None:
            if isinstance(what, RangeResult):
                results[index] = what
            events.on_range(index, what)

        failures = runner.run(context, pending, on_event)
        if failures:
            begun = len(results) + len(failures)
            raise _failed(failures, len(ranges), len(ranges) - begun)
        table.check_files(plan, results.values())
    missing = [index for index in range(len(ranges)) if index not in results]
    if missing:
        raise RefusedError(
            f"{len(missing)} results of load {plan.version} have vanished: was it discarded by "
            "another driver? Run it again"
        )
    return [results[index] for index in range(len(ranges))]


def _failed(failures: Mapping[int, str], count: int, not_begun: int) -> RangesFailedError:
    reasons = list(dict.fromkeys(failures[index].rstrip(". ") for index in sorted(failures)))
    shown = "; ".join(reasons[:MAX_SHOWN_FAILURES])
    more = len(reasons) - MAX_SHOWN_FAILURES
    others = f"; and {more} other reasons" if more > 0 else ""
    rest = f" {not_begun} others were not begun." if not_begun else ""
    return RangesFailedError(
        f"{len(failures)} of {count} ranges could not be loaded: {shown}{others}.{rest} Nothing "
        "was committed; the ranges that ended are kept, and the same command goes on with the rest"
    )


def _commit(
    table: Table,
    newest: Manifest | None,
    plan: LoadPlan,
    results: list[RangeResult],
    driver_id: str,
    now_ms: int,
) -> Manifest:
    report = table.write_report(plan, results)
    manifest = next_manifest(
        newest, plan, results, driver_id=driver_id, report=report, now_ms=now_ms
    )
    try:
        table.commit(manifest)
    except FileExistsError:
        known = table.manifest(plan.version)
        # Ours, where the store's answer to the first attempt was lost and its client tried again.
        if known.driver_id != driver_id:
            raise RefusedError(
                f"another driver has committed load {plan.version} of {table.storage.url} at this "
                "moment; nothing is lost or doubled, and the next load goes on behind it"
            ) from None
        return known
    return manifest
