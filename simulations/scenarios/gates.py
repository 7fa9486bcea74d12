"""Gates that a run of many seeds must meet, or its clean result does not count; shares of CI.

A *gate* is an event that must have happened, or a checker that must have compared something, in at
least one seed of a run. A scenario gates all of its checkers but those that `UNGATED` names. Gates
apply to runs of at least `CI[scenario].seeds` seeds; `ci` plays that number of first seeds, even if
the time is over, unless all gates are met by fewer, or by fresh seeds.
`python -m metaquorum.simulations gates` prints the table.

The rarest gates are met by about 4 of 100 seeds with several machines, and by 5 to 20 with one
machine; a new gate that is rarer needs a workload that meets it more often, or more seeds.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class CiShare(NamedTuple):
    """Share of CI's time for simulation.

    If fresh seeds do not meet a gate, CI plays the first `seeds`, one by one, until it is met.
    """

    percent: int
    seeds: int


CI: Final[Mapping[str, CiShare]] = {
    "replication": CiShare(6, 300),
    "crossings": CiShare(3, 100),
    "damaged-replicas": CiShare(2, 30),
    "held-up-writers": CiShare(1, 20),
    "cleaned-replicas": CiShare(3, 45),
    "range-loads": CiShare(2, 40),
    "throttled-replicas": CiShare(3, 20),
    "throttled-replication": CiShare(2, 20),
    "groups": CiShare(5, 40),
    "upgrades": CiShare(1, 20),
    "throttled-members": CiShare(1, 20),
    "transactions": CiShare(6, 40),
    "forged-producers": CiShare(2, 30),
    "moving-partitions": CiShare(2, 30),
    "quorum": CiShare(7, 150),
    "rebuilt-voter": CiShare(2, 40),
    "cluster": CiShare(6, 150),
    "everything": CiShare(5, 150),
    "planned-moves": CiShare(1, 20),
    "upgraded-moves": CiShare(1, 12),
    "moving-dirs": CiShare(1, 16),
    "quotas": CiShare(4, 60),
    "single-node-power": CiShare(4, 100),
    "syncs": CiShare(1, 40),
    "compaction": CiShare(4, 100),
    "failing-disk": CiShare(4, 60),
    "log-dirs": CiShare(4, 60),
    "moved-dirs": CiShare(3, 60),
    "administration": CiShare(4, 60),
    "single-node-kill": CiShare(3, 60),
    "hostile": CiShare(3, 60),
    "disk-full": CiShare(2, 60),
    "restart": CiShare(1, 60),
    "long-polls": CiShare(1, 60),
}

_NO_HOSTILE_CLIENTS: Final = (
    "GarbageEndsItsConnection",
    "LiesAreRefused",
    "AnnouncedIsServed",
)
_NO_COMPACTION: Final = ("LastOfEachKey",)
_NO_RETENTION: Final = ("RetentionIsDue",)
_NO_BROKEN_DEVICE: Final = ("OtherDirectoriesLive",)
_FEW_FAULTS: Final = (
    *_NO_HOSTILE_CLIENTS,
    *_NO_COMPACTION,
    *_NO_RETENTION,
    *_NO_BROKEN_DEVICE,
)

_OF_ATTACKERS: Final = ("ClaimsAreRefused", "LiesStayOut")
# Few workers, no attackers, and topics without compaction, retention or recompression.
_OF_GROUPS: Final = (
    *_OF_ATTACKERS,
    "LiveWorkersStay",
    "LastOfEachKeyIsRead",
    "ReplicaRetentionIsDue",
    "CompressionIsInForce",
)

# Checkers that compare nothing, or rarely, in a scenario that plays them. `everything` gates all.
UNGATED: Final[Mapping[str, tuple[str, ...]]] = {
    "replication": ("DamageStaysWhereItIs",),
    "damaged-replicas": ("LiveWorkersStay",),
    "held-up-writers": ("DamageStaysWhereItIs",),
    # No administrators, attackers, records that are synced at once, or damage.
    "crossings": (
        "CreatedIsVisible",
        "ClaimsAreRefused",
        "LiesStayOut",
        "SyncedIsKept",
        "DamageStaysWhereItIs",
    ),
    # No voters of other clusters, no flipped bits.
    "rebuilt-voter": ("StrangersStayOut", "RotIsNoticed"),
    "cleaned-replicas": ("ClaimsAreRefused", "LiesStayOut"),
    "range-loads": ("ClaimsAreRefused", "LiesStayOut"),
    "throttled-replication": (*_OF_ATTACKERS, "LiveWorkersStay"),
    "throttled-replicas": ("ClaimsAreRefused", "LiesStayOut", "PositionsStayValid"),
    "groups": _OF_GROUPS,
    "upgrades": tuple(each for each in _OF_GROUPS if each not in _OF_ATTACKERS),
    "throttled-members": (*_OF_GROUPS, "CutByEpoch", "LossesAreRecorded"),  # few faults
    "transactions": tuple(each for each in _OF_GROUPS if each != "ReplicaRetentionIsDue"),
    # Fewer kinds of fault and of client than in `transactions` and `replication`.
    "forged-producers": (
        *(each for each in _OF_GROUPS if each != "CompressionIsInForce"),
        "PositionsAreCommitted",
        "ExactlyOnce",
    ),
    "planned-moves": (*_OF_ATTACKERS, "LiveWorkersStay"),
    # Few worlds drain workers, list moves or ask for wrong ones after the upgrade.
    "upgraded-moves": (
        *_OF_ATTACKERS,
        "LiveWorkersStay",
        "DrainingTakesNothing",
        "ListedMovesExist",
        "WrongMovesAreRefused",
    ),
    # One world in ten lists moves between workers, which `moving-partitions` compares in each.
    "moving-dirs": (
        *_OF_ATTACKERS,
        "ListedMovesExist",
        "DamageStaysWhereItIs",
        "DrainingTakesNothing",
        "LastOfEachKeyIsRead",
        "LiveWorkersStay",
        "ReplicaRetentionIsDue",
    ),
    "moving-partitions": (*_OF_ATTACKERS, "DamageStaysWhereItIs", "LastOfEachKeyIsRead"),
    "single-node-kill": _FEW_FAULTS,
    "single-node-power": _FEW_FAULTS,
    # Each world loses power; none changes configs or uses fetch sessions.
    "syncs": (
        *_FEW_FAULTS,
        "NoGaps",
        "ConfigsStay",
        "ConfigsInForce",
        "SessionsDeliverEverything",
    ),
    "disk-full": _FEW_FAULTS,
    "restart": _FEW_FAULTS,
    "long-polls": (*_FEW_FAULTS, "ConfigsStay", "ConfigsInForce", "SessionsDeliverEverything"),
    "hostile": (*_NO_COMPACTION, *_NO_RETENTION, *_NO_BROKEN_DEVICE),
    "compaction": (*_NO_HOSTILE_CLIENTS, *_NO_BROKEN_DEVICE),
    "administration": (*_NO_HOSTILE_CLIENTS, *_NO_COMPACTION, *_NO_BROKEN_DEVICE),
    "failing-disk": (*_NO_HOSTILE_CLIENTS, *_NO_BROKEN_DEVICE),
    "log-dirs": (*_NO_HOSTILE_CLIENTS, *_NO_COMPACTION),
    "moved-dirs": _NO_HOSTILE_CLIENTS,
}


def is_gated(scenario: str, checker: str) -> bool:
    return checker not in UNGATED.get(scenario, ())
