"""Feature levels: what a whole cluster may rely on, whatever mix of versions its nodes run.

Every node says which levels it can run at; the metadata log says at which level the cluster runs.
A level is raised only when every registered node reaches it, and a node that does not cover the
cluster's levels is not let in, so that nothing is ever written that somebody cannot read.

Source: KIP-584, KIP-778.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from metaquorum.image import MetadataImage
from metaquorum.records import FeatureRange
from wire.errors import ErrorCode, KafkaError

METADATA_VERSION: Final = "metadata.version"
# The features this version knows, with the levels it can run at; a new cluster gets the highest.
SUPPORTED_FEATURES: Final[tuple[FeatureRange, ...]] = (FeatureRange(METADATA_VERSION, 1, 1),)


class UpgradeType(IntEnum):
    """What a change of a level may be, numbered as UpdateFeatures does."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A wish that the cluster run at `level` of the feature; 0 is without it.

    `upgrade_type` is an `UpgradeType`, or the number that a client thinks is one.
    """

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def check_features(image: MetadataImage) -> None:
    """KafkaError (UNSUPPORTED_VERSION) when the cluster runs at levels this version cannot."""
    check_covered(image, SUPPORTED_FEATURES, "this version")


def check_covered(image: MetadataImage, ranges: Sequence[FeatureRange], who: str) -> None:
    """KafkaError (UNSUPPORTED_VERSION) where the cluster's level is outside of these ranges."""
    supported = {each.name: each for each in ranges}
    for name, level in image.features.items():
        known = supported.get(name)
        if known is None or not known.least <= level <= known.most:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The cluster runs at level {level} of {name}, which {who} does not"
                " support; start a newer one.",
            )
