"""Metrics of the plans of moves that have not ended, from the metadata image.

At most `MAX_ACTIVE_PLANS` plans run at the same time, which bounds the labels.
"""

from typing import Final

from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.prometheus.slices import Slices
from metaquorum.metadata.image import MetadataImage, MovePlanImage
from metaquorum.metadata.records import FINAL_STATES, PLAN_STATES

SLICE_PARTS: Final = 200  # 20,000 moves; some 2 ms


async def add_move_plans(page: Page, image: MetadataImage, slices: Slices) -> None:
    active = {plan_id: plan for plan_id, plan in image.plans.items() if not plan.has_ended}
    for state in PLAN_STATES:
        if state not in FINAL_STATES:
            count = sum(plan.header.state == state for plan in active.values())
            page.add("metaquorum_move_plans", count, state=state)
    for plan_id, plan in sorted(active.items()):
        header, moving = plan.header, len(plan.moving)
        for state, count in (
            ("waiting", header.moves - header.begun),
            ("moving", moving),
            ("done", header.done),
            ("stopped", header.stopped),
        ):
            page.add("metaquorum_move_plan_moves", count, plan=plan_id, state=state)
        left = await _bytes_left(plan, slices)
        page.add("metaquorum_move_plan_bytes_left", left, plan=plan_id)
        if header.rate_bytes_per_s is not None:
            page.add("metaquorum_move_plan_throttle_rate", header.rate_bytes_per_s, plan=plan_id)


async def _bytes_left(plan: MovePlanImage, slices: Slices) -> int:
    """Return the estimated bytes of the moves that wait or move."""
    begun, moving = plan.header.begun, plan.moving
    left = first = 0
    for number, part in enumerate(plan.parts, 1):
        for at, move in enumerate(part, first):
            if at >= begun or (move.topic_id, move.partition) in moving:
                left += move.size_bytes
        first += len(part)
        if number % SLICE_PARTS == 0:
            await slices.rest()
    return left
