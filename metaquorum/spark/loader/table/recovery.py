"""Recovery rules: the next step of a driver, derived from the files in the output. No I/O.

    found                                            next
    no files                                         plan load 1
    manifest N, its staging folder has files         publish N, then look again
    manifest N, no plan N + 1                        plan load N + 1
    plan N + 1, some ranges without a result         run those ranges
    plan N + 1, a result for each range              commit N + 1, then look again

    staging of a load up to N, published             delete it
    staging of load N + 1, but of another plan       delete it: that plan was discarded
    plans up to N                                    kept, as a record of the requests

Each step is idempotent: after a crash at any point, another process can repeat it from its start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from metaquorum.spark.loader.errors import OutputError
from metaquorum.spark.loader.table.layout import (
    LOADING_FOLDER,
    MANIFESTS_FOLDER,
    META_FOLDER,
    PLANS_FOLDER,
    REJECTED_FOLDER,
    manifest_path,
    staging_folder,
    staging_of,
    version_of,
)
from metaquorum.spark.loader.table.manifest import Manifest
from metaquorum.wire.primitives.frozen import frozen

_OURS = frozenset((META_FOLDER, LOADING_FOLDER, REJECTED_FOLDER))


@frozen
class Publish:
    """Step: move the committed files to their paths; some are not yet moved."""

    version: int


@frozen
class MakePlan:
    version: int


@frozen
class RunPlan:
    """Step: run the ranges of the plan that have no result yet, then commit it."""

    version: int


Step: TypeAlias = Publish | MakePlan | RunPlan


@frozen
class Listing:
    """Versions of manifests and plans, and the number of files in each staging folder."""

    manifests: Sequence[int]
    plans: Collection[int]
    staging: Mapping[tuple[int, str], int]

    @property
    def newest(self) -> int:
        """Version of the newest manifest; 0: there is none."""
        return self.manifests[-1] if self.manifests else 0


def listing_of(paths: Collection[str]) -> Listing:
    """Return the listing of the paths below the two folders of the loader.

    Raises OutputError if manifests are missing.
    """
    manifests, plans = [], set()
    staging: dict[tuple[int, str], int] = {}
    for path in paths:
        folder, version = path.rpartition("/")[0], version_of(path)
        if folder == MANIFESTS_FOLDER and version is not None:
            manifests.append(version)
        elif folder == PLANS_FOLDER and version is not None:
            plans.add(version)
        elif (found := staging_of(path)) is not None:
            staging[found] = staging.get(found, 0) + 1
    manifests.sort()
    for expected, version in enumerate(manifests, 1):
        if version != expected:
            raise OutputError(
                f"manifest {expected} is missing, although there is {manifest_path(version)}; "
                f"restore {MANIFESTS_FOLDER} from a backup, or load into another folder"
            )
    if plans and max(plans) > len(manifests) + 1:
        raise OutputError(
            f"there is a plan of load {max(plans)}, although only {len(manifests)} loads are "
            f"committed; restore {MANIFESTS_FOLDER} from a backup, or load into another folder"
        )
    return Listing(manifests, plans, staging)


def next_step(listing: Listing, newest: Manifest | None) -> Step:
    """Return the next step; `newest` is the manifest of the last version, None without one."""
    assert (newest is None) == (listing.newest == 0)
    if newest is not None and (newest.version, newest.plan_id) in listing.staging:
        return Publish(newest.version)
    version = listing.newest + 1
    return RunPlan(version) if version in listing.plans else MakePlan(version)


def garbage(listing: Listing, newest: Manifest | None, plan_id: str | None) -> list[str]:
    """Return the staging folders that no load needs once the newest manifest is published.

    `plan_id` is that of the plan after the newest manifest; None: there is no such plan, and no
    staging folder of that version is needed.
    """
    kept = {(listing.newest + 1, plan_id)} if plan_id is not None else set()
    if newest is not None:
        kept.add((newest.version, newest.plan_id))
    return [staging_folder(*each) for each in sorted(listing.staging) if each not in kept]


def check_is_ours(names: Collection[str], url: str) -> None:
    """Raise OutputError unless a folder without a format file has only folders of the loader."""
    strangers = [name for name in names if name not in _OURS]
    if strangers:
        raise OutputError(
            f"{url} is not a table of mq-load and has other files ({strangers[0]}); "
            "choose an empty folder"
        )
