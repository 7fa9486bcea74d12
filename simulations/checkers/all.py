"""Table of the checkers of one node."""

from typing import Final

from metaquorum.simulations.checkers.configs import ConfigsInForce, ConfigsStay
from metaquorum.simulations.checkers.deletion import DeletedStaysDeleted
from metaquorum.simulations.checkers.delivery import (
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
from metaquorum.simulations.checkers.log_files import (
    IndexIsScan,
    LookupsFindEverything,
    RetentionLeavesTheActive,
)
from metaquorum.simulations.checkers.metadata import (
    AcknowledgedChangesStay,
    AppliedStays,
    ImageIsFold,
)
from metaquorum.simulations.checkers.protocol import (
    AnnouncedIsServed,
    GarbageEndsItsConnection,
    LiesAreRefused,
)
from metaquorum.simulations.checkers.retention import RetentionIsDue
from metaquorum.simulations.harness.environment import AnswersInOrder, Checker

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
