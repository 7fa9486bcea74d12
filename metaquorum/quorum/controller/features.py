"""Feature levels: which record formats and protocols the cluster may use with mixed node versions.

Every node registers the levels that it supports; the metadata log holds the level of the cluster.
A level is raised only if every registered node supports it, and a node that does not support the
cluster's levels cannot register. So every node can read all records that are written.

Source: KIP-584, KIP-778.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    ELIGIBLE_LEADERS,
    METADATA_VERSION,
    TRANSACTION_VERSION,
    FeatureLevelRecord,
    FeatureRange,
    MetadataRecord,
)
from metaquorum.quorum.controller.decision import Decision
from metaquorum.quorum.controller.leaders import eligible_leaders
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError
from metaquorum.wire.primitives.frozen import frozen

# Levels of metadata.version: the first with consumer groups, in which all workers protect internal
# topics, the first with transactions, and the first with moves of partitions.
GROUPS_LEVEL: Final = 2
TRANSACTIONS_LEVEL: Final = 3
MOVES_LEVEL: Final = 4
# Features and levels that this version supports; a new cluster starts at the highest levels.
SUPPORTED_FEATURES: Final[tuple[FeatureRange, ...]] = (
    # 2: consumer groups, and protected internal topics; 3: transactions; 4: moves of partitions
    FeatureRange(METADATA_VERSION, 1, 4),
    FeatureRange(ELIGIBLE_LEADERS, 0, 1),
    # 1: newer records of the transaction coordinator; 2: a producer epoch for each transaction, and
    # partitions that are added by Produce (KIP-890)
    FeatureRange(TRANSACTION_VERSION, 0, 2),
)
# Levels of other features that all levels of a feature above 0 need.
DEPENDENCIES: Final[Mapping[str, Mapping[str, int]]] = {
    TRANSACTION_VERSION: {METADATA_VERSION: TRANSACTIONS_LEVEL},
}
# Levels of a node whose registration does not state any: nodes of the first version do not, because
# the codec omits defaults. These must never change, and newer nodes always state their levels.
UNSTATED_FEATURES: Final[tuple[FeatureRange, ...]] = (
    FeatureRange(METADATA_VERSION, 1, 1),
    FeatureRange(ELIGIBLE_LEADERS, 0, 1),
)


class UpgradeType(IntEnum):
    """Permitted direction of a level change, numbered as in UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@frozen
class FeatureUpdate:
    """Request to set the cluster's level of a feature; 0 disables it.

    `upgrade_type` is an `UpgradeType`, or an unknown number that a client sent.
    """

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def found_cluster(
    image: MetadataImage, first_records: Sequence[MetadataRecord] = ()
) -> Decision[None]:
    """Decide the feature levels of a new cluster; no records if the cluster has them already.

    `first_records` are the other initial records of a new cluster.
    """
    missing = [each for each in SUPPORTED_FEATURES if each.name not in image.features]
    records: list[MetadataRecord] = [FeatureLevelRecord(each.name, each.most) for each in missing]
    return Decision(None, [*records, *(first_records if records else ())])


def check_features(image: MetadataImage) -> None:
    """Raise KafkaError (UNSUPPORTED_VERSION) if this version cannot run at a cluster level."""
    check_covered(image, SUPPORTED_FEATURES, "this version")


def check_covered(image: MetadataImage, ranges: Sequence[FeatureRange], who: str) -> None:
    """Raise KafkaError (UNSUPPORTED_VERSION) if a cluster level is outside of these ranges."""
    supported = {each.name: each for each in ranges}
    for name, level in image.features.items():
        known = supported.get(name)
        if known is None or not known.least <= level <= known.most:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The cluster runs at level {level} of {name}, which {who} does not"
                " support; start a newer version.",
            )


def check_level(image: MetadataImage, name: str, level: int, what: str) -> None:
    """Raise KafkaError (UNSUPPORTED_VERSION) if the cluster's level of a feature is below `level`.

    `what`: what needs the level, such as "consumer groups".
    """
    known = image.features.get(name, 0)
    if known < level:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{what[:1].upper()}{what[1:]} needs level {level} of {name}, and the cluster runs at"
            f" level {known}. When all nodes run this version, raise the level with"
            f" 'mq-admin cluster upgrade {name}={level}' or"
            f" 'kafka-features.sh upgrade --feature {name}={level}'.",
        )


def update_features(
    image: MetadataImage,
    updates: Sequence[FeatureUpdate],
    nodes: Mapping[str, Sequence[FeatureRange] | None],
    static_configs: Mapping[str, str],
) -> Decision[None]:
    """Decide a change of the cluster's feature levels. Raises KafkaError if one is invalid.

    `nodes` maps the display name of every controller and worker to its supported levels, None if
    they are unknown. `static_configs` are those of the controller.
    """
    if len({update.name for update in updates}) != len(updates):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A feature is given more than once.")
    proposed = dict(image.features) | {update.name: update.level for update in updates}
    for update in updates:
        _check_update(image.features.get(update.name, 0), update, nodes)
        _check_dependencies(update, proposed)
    changed = [each for each in updates if each.level != image.features.get(each.name, 0)]
    records = _update_records(image, changed, static_configs)
    return Decision(None, records, divisible=True)


def _update_records(
    image: MetadataImage, updates: Sequence[FeatureUpdate], static_configs: Mapping[str, str]
) -> Iterator[MetadataRecord | None]:
    """Yield the preparing records first, which are valid at the old levels, then the levels.

    The level of metadata.version is the first, because others may need it.
    """
    for update in updates:
        if update.name == ELIGIBLE_LEADERS:
            steps = eligible_leaders.beginning(image, static_configs)
            yield from steps if update.level else eligible_leaders.ending(image)
    for update in sorted(updates, key=lambda each: each.name != METADATA_VERSION):
        yield FeatureLevelRecord(update.name, update.level)


def nodes_with_features(
    image: MetadataImage, active_id: int, voters: Sequence[int]
) -> dict[str, Sequence[FeatureRange] | None]:
    """Return the supported levels of every node; `active_id` is the calling controller."""
    nodes: dict[str, Sequence[FeatureRange] | None] = {
        f"Local controller {active_id}": SUPPORTED_FEATURES
    }
    for controller_id in voters:
        if controller_id != active_id:
            known = image.controllers.get(controller_id)
            nodes[f"Controller {controller_id}"] = None if known is None else known.features
    for worker_id, worker in sorted(image.workers.items()):
        nodes[f"Broker {worker_id}"] = worker.features
    return nodes


def _check_update(
    level: int, update: FeatureUpdate, nodes: Mapping[str, Sequence[FeatureRange] | None]
) -> None:
    if update.upgrade_type not in UpgradeType._value2member_map_:
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if update.level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    for complaint in _unsupported(update, nodes):
        raise _invalid(update, complaint)
    upgrades = update.upgrade_type == UpgradeType.UPGRADE
    if update.level > level and not upgrades:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if update.level < level and upgrades:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either"
            " safe or unsafe downgrade.",
        )
    if update.level < level and update.name == METADATA_VERSION:
        safe = update.upgrade_type == UpgradeType.SAFE_DOWNGRADE
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {level} to {update.level}. "
            + (
                "Refusing to perform the requested downgrade because it might delete metadata"
                " information."
                if safe
                else "Unsafe metadata downgrade is not supported in this version."
            ),
        )


def _check_dependencies(update: FeatureUpdate, proposed: Mapping[str, int]) -> None:
    """Raise KafkaError if the levels after all updates do not suffice for this one."""
    if not update.level:
        return
    for name, level in DEPENDENCIES.get(update.name, {}).items():
        if (known := proposed.get(name, 0)) < level:
            raise _invalid(
                update,
                f"It depends on level {level} of {name}, and the cluster runs at level {known}."
                f" Raise both with 'mq-admin cluster upgrade {name}={level}"
                f" {update.name}={update.level}'.",
            )


def _unsupported(
    update: FeatureUpdate, nodes: Mapping[str, Sequence[FeatureRange] | None]
) -> Iterator[str]:
    for node, ranges in nodes.items():
        if ranges is None:
            yield f"{node} has not registered its supported versions yet."
            continue
        known = next((each for each in ranges if each.name == update.name), None)
        if known is None:
            if update.level:  # level 0 equals the absence of the feature
                yield f"{node} does not support this feature."
        elif not known.least <= update.level <= known.most:
            yield f"{node} only supports versions {known.least}-{known.most}"


def _invalid(update: FeatureUpdate, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name}. {reason}",
    )
