"""Parts of the worker that answers to fetches use."""

from typing import Protocol

from metaquorum.dataplane.fetch.long_polls import LongPolls
from metaquorum.dataplane.fetch.sessions import FetchSessions
from metaquorum.dataplane.worker.capabilities import HasClock, HasDisk, HasImage, ReadsPartitions


class AnswersFetches(ReadsPartitions, HasDisk, HasImage, Protocol):
    """Parts for looking up partitions, long polls, and reading uncached pages in a thread."""

    @property
    def long_polls(self) -> LongPolls: ...


class KeepsSessions(AnswersFetches, HasClock, Protocol):
    """`AnswersFetches`, and parts for opening, continuing and closing fetch sessions."""

    @property
    def fetch_sessions(self) -> FetchSessions: ...
