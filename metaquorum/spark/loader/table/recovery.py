"""What a driver has to do next, from what it finds in the output. No I/O.

    found                                            next
    nothing                                          plan load 1
    manifest N, its staging folder has files         publish N, then look again
    manifest N, no plan N + 1                        plan load N + 1
    plan N + 1, some ranges without a result         run those ranges
    plan N + 1, a result for each range              commit N + 1, then look again

    staging of a load up to N, published             garbage
    staging of load N + 1, but of another plan       garbage: that plan was discarded
    plans up to N                                    kept, as the record of what was asked for

Each step can be done again from its beginning, by another process, after a death anywhere in it.
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
    staging_folder,
    staging_of,
    version_of,
)
from metaquorum.spark.loader.table.manifest import Manifest
from wire.primitives.frozen import frozen

_OURS = frozenset((META_FOLDER, LOADING_FOLDER, REJECTED_FOLDER))


@frozen
class Publish:
    """Its files are committed, and not all at their places."""

    version: int


@frozen
class MakePlan:
    version: int


@frozen
class RunPlan:
    """The ranges of the plan that have no result yet are to be run; then it is committed."""

    version: int


Step: TypeAlias = Publish | MakePlan | RunPlan


@frozen
class Listing:
    """Versions of manifests and plans, and the staging folders with how many files each has."""

    manifests: Sequence[int]
    plans: Collection[int]
    staging: Mapping[tuple[int, str], int]

    @property
    def newest(self) -> int:
        """Of the manifests; 0: none."""
        return self.manifests[-1] if self.manifests else 0


def listing_of(paths: Collection[str]) -> Listing:
    """From the paths below the two folders of the loader. OutputError: manifests are missing."""
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
    if manifests != list(range(1, len(manifests) + 1)):
        missing = min(set(range(1, manifests[-1])) - set(manifests), default=0)
        raise OutputError(
            f"manifest {missing} is missing, though there are later ones; take "
            f"{MANIFESTS_FOLDER} back from a backup, or load into another folder"
        )
    if plans and max(plans) > len(manifests) + 1:
        raise OutputError(
            f"there is a plan of load {max(plans)}, though only {len(manifests)} loads are "
            f"committed; take {MANIFESTS_FOLDER} back from a backup, or load into another folder"
        )
    return Listing(manifests, plans, staging)


def next_step(listing: Listing, newest: Manifest | None) -> Step:
    """`newest` is the manifest of the last version, None where there is none."""
    assert (newest is None) == (listing.newest == 0)
    if newest is not None and (newest.version, newest.plan_id) in listing.staging:
        return Publish(newest.version)
    version = listing.newest + 1
    return RunPlan(version) if version in listing.plans else MakePlan(version)


def garbage(listing: Listing, newest: Manifest | None, plan_id: str | None) -> list[str]:
    """Staging folders that nobody will read or write any more, once the newest is published.

    `plan_id` is that of the plan behind the newest manifest; None: there is no such plan, and what
    was staged for one is garbage, too.
    """
    kept = {(listing.newest + 1, plan_id)} if plan_id is not None else set()
    if newest is not None:
        kept.add((newest.version, newest.plan_id))
    return [staging_folder(*each) for each in sorted(listing.staging) if each not in kept]


def check_is_ours(names: Collection[str], url: str) -> None:
    """That a folder without a format file is empty, or as a load that died at once left it."""
    strangers = [name for name in names if name not in _OURS]
    if strangers:
        raise OutputError(
            f"{url} holds something else ({strangers[0]}), and no table of mq-load; "
            "choose an empty folder"
        )
