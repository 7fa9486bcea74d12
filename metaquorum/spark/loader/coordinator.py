"""Driver of a load: plan, run, commit, publish; it resumes an unfinished load at any step.

    make plan N        created exclusively: one of two drivers succeeds
    run its ranges     those without a result; results are created exclusively, too
    write the report   one line for each result
    commit N           the manifest is created exclusively; the load is then part of the table
    publish N          staged files move to their places; the rest of that folder is deleted

`recovery` derives the next step from the files in the output. The only way to recover a load that
died is to run it again.
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
from metaquorum.wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

MAX_SHOWN_FAILURES: Final = 3
# Parts of a request that may differ from those of an unfinished plan, which keeps its own.
LIMITS: Final = frozenset(("from", "to"))


class Planner(Protocol):
    """Source of plans: the cluster, or a model of it in tests."""

    def make(self, previous: Manifest | None) -> ReadPlan | None:
        """Return the plan of the records after the newest manifest; None: there are none."""

    def check(self, plan: LoadPlan) -> None:
        """Raise RefusedError unless the cluster and the topics are those of the plan."""


@frozen
class LoadRequest:
    """Request for one load; `request` has the arguments that a later run compares."""

    output: str
    request: Mapping[str, Any]
    settings: TableSettings
    fetch: FetchOptions
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry_auth: RegistryAuth | None = field(default=None, repr=False)
    discard_unfinished: bool = False
    has_own_client_id: bool = False  # if False, the plan's client id is used

    def client_id(self, plan: LoadPlan) -> str:
        """Return the client id: the request's own, or that of the plan for all its runs."""
        return self.fetch.connecting.client_id if self.has_own_client_id else plan.client_id


@frozen
class LoadOutcome:
    """Outcome of one load. `manifest` None: there was nothing to load.

    `resumed`: an earlier run had begun the load. `is_as_asked`: False if that run had other limits
    (--from, --to), which the load kept.
    """

    manifest: Manifest | None
    results: tuple[RangeResult, ...]
    resumed: bool
    client_id: str
    is_as_asked: bool = True


class Events:
    """Callbacks of a driver; each method may be overridden."""

    def on_plan(self, plan: LoadPlan, done: int) -> None:
        """Handle the start of a plan, `done` ranges of which already have results."""

    def on_range(self, index: int, what: TaskProgress | RangeResult) -> None:
        """Handle the progress of an attempt at the range, or the result of the range."""

    def on_committed(self, manifest: Manifest) -> None:
        """Handle the commit of the load."""

    def on_group_refused(self, group: str, reason: str) -> None:
        """Handle that the load's offsets were not committed for the group."""


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
    """Run one load, the unfinished one or else a new one, until it is committed and published.

    Blocking. The caller has opened the table and holds its lock. Raises LoaderError if the load
    fails, and the errors of the planner.
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
    """Raise RefusedError unless the unfinished plan has the same request, apart from LIMITS."""
    changed = sorted(
        name
        for name in {*plan.request, *request.request} - LIMITS
        if plan.request.get(name) != request.request.get(name)
    )
    if plan.settings != request.settings:
        changed.append("the settings of the files")
    if changed:
        raise RefusedError(
            f"load {plan.version} is unfinished and was started with other arguments (it differs "
            f"in {', '.join(changed)}); run the same command again to finish it, or give "
            "--discard-unfinished to discard it"
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
            f"another driver has planned load {step.version} of {table.storage.url} at the same "
            "time; wait until it ends, and run the load again"
        ) from None
    return plan


def _sweep(table: Table, listing: Listing, newest: Manifest | None, plan_id: str | None) -> None:
    """Delete the staging folders of finished and discarded loads.

    The newest manifest must be published.
    """
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
            f"{len(missing)} results of load {plan.version} have disappeared: another driver may "
            "have discarded the load; run it again"
        )
    return [results[index] for index in range(len(ranges))]


def _failed(failures: Mapping[int, str], count: int, not_begun: int) -> RangesFailedError:
    reasons = list(dict.fromkeys(failures[index].rstrip(". ") for index in sorted(failures)))
    shown = "; ".join(reasons[:MAX_SHOWN_FAILURES])
    more = len(reasons) - MAX_SHOWN_FAILURES
    others = f"; and {more} other reasons" if more > 0 else ""
    rest = f" {not_begun} others were not started." if not_begun else ""
    return RangesFailedError(
        f"{len(failures)} of {count} ranges could not be loaded: {shown}{others}.{rest} Nothing "
        "was committed; finished ranges are kept, and the same command loads the rest"
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
        # This driver's own manifest, if a store's client retried after a lost response.
        if known.driver_id != driver_id:
            raise RefusedError(
                f"another driver has committed load {plan.version} of {table.storage.url} at the "
                "same time; no record is lost or duplicated, and the next load continues after it"
            ) from None
        return known
    return manifest
