"""Steps of plans of moves, one after the other, while this controller is active.

The rules of a step are in `move_plans`. A step follows when a move of the plan has ended, but not
more often than every PACE_S seconds, so that the moves which end meanwhile are followed by one
batch. Without a plan that has not ended, nothing runs.
"""

import logging
from collections.abc import Mapping
from typing import Final

import trio

from metaquorum.metadata.image import MovePlanImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import CANCELLED, CANCELLING, LOADING, MovePlanRecord
from metaquorum.quorum.controller.plans.move_plans import expire_plan, step_plan
from metaquorum.quorum.controller.proposer import Proposer
from metaquorum.runtime.interfaces import Clock, sleep
from metaquorum.wire.primitives.errors import KafkaError

logger = logging.getLogger(__name__)

PACE_S: Final = 0.1
CHECK_S: Final = 1.0  # some changes stop a move without a change of its plan: a worker is removed
LOADING_S: Final = 60.0  # a plan that gets no moves for this time has lost its sender
MOST_NAMED: Final = 10  # moves in one log line


class PlanExecution:
    """Execution of all plans of moves by one controller, in one term."""

    def __init__(self, proposer: Proposer, loader: MetadataLoader, clock: Clock) -> None:
        self._proposer = proposer
        self._loader = loader
        self._clock = clock
        # Number of parts and time of expiry of each plan that is loading.
        self._expiry: dict[int, tuple[int, float]] = {}
        # Number of stopped moves of each plan that were logged.
        self._stopped: dict[int, int] = {}

    async def run(self) -> None:
        """Take every step that is due, until cancelled."""
        plans = self._loader.image.plans
        self._stopped = {plan_id: plan.header.stopped for plan_id, plan in plans.items()}
        while True:
            plans = self._loader.image.plans
            self._log_stops(plans)
            active = [plan_id for plan_id, plan in sorted(plans.items()) if not plan.has_ended]
            has_more = False
            for plan_id in active:
                try:
                    has_more |= await self._step(plan_id)
                except KafkaError as error:
                    logger.warning(
                        "cannot continue plan %d of moves: %s; the next check tries again",
                        plan_id,
                        error.message,
                    )
            if active:
                await sleep(self._clock, PACE_S)
            if not has_more:
                await self._wait_change(plans, may_time_out=bool(active))

    async def _step(self, plan_id: int) -> bool:
        """Take the next step of a plan. Returns whether another one could do more at once."""
        plan = self._loader.image.plans.get(plan_id)
        if plan is not None and plan.header.state == LOADING:
            await self._expire(plan_id, len(plan.parts))
            return False
        self._expiry.pop(plan_id, None)
        now_ms = self._clock.now_ms()
        changed = await self._proposer.change(lambda image: step_plan(image, plan_id, now_ms))
        step = changed.answer
        if step.ended is not None:
            _log_end(step.ended)
        return step.has_more

    def _log_stops(self, plans: Mapping[int, MovePlanImage]) -> None:
        """Log the moves that were stopped, by this controller or by other changes, and why."""
        before = self._stopped
        self._stopped = {plan_id: plan.header.stopped for plan_id, plan in plans.items()}
        for plan_id, stopped in self._stopped.items():
            header = plans[plan_id].header
            count = stopped - before.get(plan_id, 0)
            if count and header.state not in (CANCELLING, CANCELLED):
                named = header.stops[-count:][:MOST_NAMED]
                logger.warning(
                    "%d moves of plan %d were stopped: %s%s",
                    count,
                    plan_id,
                    "; ".join(f"{at_text(*stop[:2])}: {stop.reason}" for stop in named),
                    "; ..." if count > len(named) else "",
                )

    async def _expire(self, plan_id: int, parts: int) -> None:
        now = self._clock.monotonic()
        known, deadline = self._expiry.get(plan_id, (-1, 0.0))
        if known != parts:
            self._expiry[plan_id] = parts, now + LOADING_S
        elif now >= deadline:
            logger.warning(
                "plan %d is cancelled: it has got no moves for %d s", plan_id, round(LOADING_S)
            )
            await self._proposer.change(lambda image: expire_plan(image, plan_id))

    async def _wait_change(self, known: Mapping[int, MovePlanImage], *, may_time_out: bool) -> None:
        """Wait until the plans are no longer `known`; at most CHECK_S seconds if that is said."""
        if not may_time_out:
            await self._loader.wait_plans(known)
            return
        async with trio.open_nursery() as nursery:

            async def expire() -> None:
                await sleep(self._clock, CHECK_S)
                nursery.cancel_scope.cancel()

            nursery.start_soon(expire)
            await self._loader.wait_plans(known)
            nursery.cancel_scope.cancel()


def at_text(topic: str, partition: int) -> str:
    """Return the name of a partition; of a deleted topic only the number is known."""
    return f"{topic}-{partition}" if topic else f"partition {partition} of a deleted topic"


def _log_end(header: MovePlanRecord) -> None:
    logger.info(
        "plan %d of moves is %s: %d of %d moves are done, %d were cancelled or given up",
        header.plan_id,
        header.state,
        header.done,
        header.moves,
        header.stopped,
    )
