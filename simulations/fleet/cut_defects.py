"""Mistakes in how a follower cuts its log: what a crash finds of it."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Final

from dataplane.log.local_log import LocalLog
from dataplane.log.offset_checkpoints import OffsetCheckpoints
from simulations.planting import Defect, all_of, swapped


def _recovery_point_above_cut() -> AbstractContextManager[None]:
    def wrong(_: Any) -> Any:
        @asynccontextmanager
        async def cutting(self: Any, logs: Any, kept: Any) -> AsyncIterator[None]:
            yield

        return cutting

    def unasserted(_: Any) -> Any:
        def _distrust_from(self: Any, offset: int) -> None:
            self.recovery_point = min(self.recovery_point, offset)

        return _distrust_from

    return all_of(
        swapped(OffsetCheckpoints, "cutting", wrong),
        swapped(LocalLog, "_distrust_from", unasserted),
    )


CUT_DEFECTS: Final = tuple(
    Defect(name, about, "replication", found_as, plant)
    for name, about, found_as, plant in (
        (
            "recovery-point-above-cut",
            "the recovery point on disk is not lowered before a follower cuts its log below it",
            ("L4",),
            _recovery_point_above_cut,
        ),
    )
)
