"""Names under which DescribeConfigs shows the rates at which plans of moves limit a worker.

    plan.<id>.leader.replication.throttled.rate
    plan.<id>.follower.replication.throttled.rate

They are not configs that can be set: the plan's records hold the rate, and the end of its moves
ends it. An operator's `leader|follower.replication.throttled.rate` is shown, too; the lowest rate
is in force.
"""

import re
from typing import Final

from metaquorum.config.definition import LONG, ConfigKey, Range, Scope

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
_NAME: Final = re.compile(r"plan\.([0-9]{1,19})\.(?:leader|follower)\.replication\.throttled\.rate")


def plan_limit(plan_id: int, owner: str, side: str) -> ConfigKey:
    """Return the config that shows the limit of a plan that `owner` started; `side`: see above."""
    what = "the copies that this worker " + ("sends" if side == LEADER else "receives")
    return ConfigKey(
        f"plan.{plan_id}.{side}.replication.throttled.rate",
        LONG,
        None,
        Range(1),
        Scope.WORKER,
        False,
        f"Bytes per second at which plan {plan_id} of {owner} limits {what}, until its moves end."
        f" `mq-admin moves throttle {plan_id} RATE` changes it.",
    )


def plan_named(name: str) -> int | None:
    """Return the id of the plan whose limit has that name; None for all other configs."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])
