"""Connection of a member to the coordinator of its group, with requests that await their answers.

A JoinGroup is answered when all members have joined, after seconds or minutes. `submit` therefore
returns when the request is sent, and `progress` hands the responses that have arrived, in the order
of the requests, to their handlers. A handler gets None if the connection failed first.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from metaquorum.client.cluster import Cluster, Node
from metaquorum.client.connection import MAX_IN_FLIGHT, BrokerConnection
from metaquorum.client.errors import BrokerError, UnreachableError
from metaquorum.client.groups.coordinators import find_coordinators, subject
from metaquorum.client.transport import BROKEN
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.schema.message import Message

Handler = Callable[[Any], None]

# Time to look for a response that has arrived: a deadline in the past would not look at all.
GLANCE_S: Final = 0.001


class CoordinatorLink:
    """Connection to the coordinator of one group, looked up again after `lose`."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._connection: BrokerConnection | None = None
        self._handlers: deque[Handler] = deque()
        self.node: Node | None = None

    @property
    def is_open(self) -> bool:
        """Whether the coordinator is known and connected."""
        return self._connection is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no response yet."""
        return bool(self._handlers)

    async def open(self, deadline: float) -> None:
        """Look up the coordinator and connect to it, unless connected.

        Raises BrokerError, perhaps retriable, and UnreachableError.
        """
        if self._connection is not None:
            return
        found = (await find_coordinators(self._cluster, [self._group], deadline))[self._group]
        if isinstance(found, BrokerError):
            raise found
        if found not in self._cluster.nodes:
            await self._cluster.refresh(deadline=deadline)
        node = self._cluster.nodes.get(found)
        if node is None:
            text = f"its coordinator, node {found}, is not in the metadata of the cluster"
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise BrokerError(code, text, subject(self._group))
        self._connection = await self._cluster.open_connection(node, deadline)
        self.node = node

    async def submit(
        self,
        request: Message,
        handler: Handler,
        deadline: float,
        *,
        max_version: int | None = None,
    ) -> None:
        """Send a request; `progress` calls `handler` with its response, or None if it is lost.

        Raises NotServedError if the coordinator is too old.
        """
        connection = self._connection
        assert connection is not None
        while len(self._handlers) >= MAX_IN_FLIGHT:
            await self.progress(deadline)
        connection.version_of(type(request))  # raises NotServedError before it sends
        self._handlers.append(handler)
        try:
            await connection.send(request, deadline, max_version=max_version)
        except BROKEN:
            self.lose()
        except BaseException:  # a part of the request may have been sent
            self.lose()
            raise

    async def progress(self, deadline: float) -> bool:
        """Wait for the oldest response; return whether a handler was called by the deadline."""
        connection = self._connection
        if connection is None or not self._handlers:
            return False
        try:
            response = await connection.receive(deadline)
        except TimeoutError:
            return False
        except BROKEN:
            self.lose()
            return True
        self._handlers.popleft()(response)
        return True

    async def ask(
        self, request: Message, deadline: float, *, max_version: int | None = None
    ) -> Any:
        """Send a request and return its response.

        Raises UnreachableError if the connection fails or at the deadline; a change may have been
        made.
        """
        answers: list[Any] = []
        await self.submit(request, answers.append, deadline, max_version=max_version)
        while not answers:
            if not await self.progress(deadline):
                self.lose()
        if answers[0] is None:
            raise UnreachableError(f"{subject(self._group)}: its coordinator did not answer")
        return answers[0]

    def lose(self) -> None:
        """Close the connection and forget the coordinator; requests without responses are lost."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self.node = None
        lost, self._handlers = self._handlers, deque()
        for handler in lost:
            handler(None)

    def version_of(self, request: type[Message]) -> int:
        """Return the newest version that the coordinator and this client support."""
        assert self._connection is not None
        return self._connection.version_of(request)
