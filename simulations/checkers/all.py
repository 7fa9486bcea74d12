"""Table of the checkers of one node."""

from typing import Final

from simulations.checkers.configs import ConfigsInForce, ConfigsStay
from simulations.checkers.deletion import DeletedStaysDeleted
from simulations.checkers.delivery import (
    AckedOffsetIsIts,
    AcknowledgedIsKept,
    BelowHighWatermark,
    DeliveredOnce,
    EveryOffsetOnce,
    LastOfEachKey,
    NoGaps,
    NothingInvented,
    OffsetsIncrease,
    OneRecordPerOffset,
    OrderOfSending,
    OtherDirectoriesLive,
    SessionsDeliverEverything,
)
from simulations.checkers.log_files import (
    IndexIsScan,
    LookupsFindEverything,
    RetentionLeavesTheActive,
)
from simulations.checkers.metadata import AcknowledgedChangesStay, AppliedStays, ImageIsFold
from simulations.checkers.protocol import (
    AnnouncedIsServed,
    GarbageEndsItsConnection,
    LiesAreRefused,
)
from simulations.checkers.retention import RetentionIsDue
from simulations.harness.environment import AnswersInOrder, Checker

CHECKERS: Final[tuple[type[Checker], ...]] = (
    AnswersInOrder,
    GarbageEndsItsConnection,
    LiesAreRefused,
    AnnouncedIsServed,
    AcknowledgedChangesStay,
    AppliedStays,
    ImageIsFold,
    ConfigsStay,
    ConfigsInForce,
    DeletedStaysDeleted,
    OneRecordPerOffset,
    OffsetsIncrease,
    AckedOffsetIsIts,
    EveryOffsetOnce,
    BelowHighWatermark,
    NothingInvented,
    AcknowledgedIsKept,
    LastOfEachKey,
    DeliveredOnce,
    OrderOfSending,
    NoGaps,
    SessionsDeliverEverything,
    OtherDirectoriesLive,
    IndexIsScan,
    LookupsFindEverything,
    RetentionLeavesTheActive,
    RetentionIsDue,
)
