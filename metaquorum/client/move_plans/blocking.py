"""Administration of plans of moves, without an event loop."""

from metaquorum.client.cluster import Cluster
from metaquorum.client.move_plans.admin import MoveAdmin
from metaquorum.client.socket_transport import Blocking, blocking


class BlockingMoveAdmin(Blocking[MoveAdmin]):
    """`MoveAdmin` with blocking methods."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(MoveAdmin(cluster))

    start = blocking(MoveAdmin.start)
    alter = blocking(MoveAdmin.alter)
    describe = blocking(MoveAdmin.describe)
    progress = blocking(MoveAdmin.progress)
    facts = blocking(MoveAdmin.facts)
