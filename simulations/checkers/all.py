"""Every checker there is."""

from typing import Final

from simulations.checkers import Checker
from simulations.checkers.delivery import (
    AckedOffsetIsIts,
    AcknowledgedIsKept,
    BelowHighWatermark,
    DeliveredOnce,
    EveryOffsetOnce,
    LastOfEachKey,
    NothingInvented,
    OffsetsIncrease,
    OneRecordPerOffset,
    OrderOfSending,
)
from simulations.checkers.log_files import (
    IndexIsScan,
    LookupsFindEverything,
    RetentionLeavesTheActive,
)
from simulations.checkers.metadata import AcknowledgedChangesStay, AppliedStays, ImageIsFold
from simulations.checkers.protocol import (
    AnnouncedIsServed,
    AnswersInOrder,
    GarbageEndsItsConnection,
)

CHECKERS: Final[tuple[type[Checker], ...]] = (
    AnswersInOrder,
    GarbageEndsItsConnection,
    AnnouncedIsServed,
    AcknowledgedChangesStay,
    AppliedStays,
    ImageIsFold,
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
    IndexIsScan,
    LookupsFindEverything,
    RetentionLeavesTheActive,
)
