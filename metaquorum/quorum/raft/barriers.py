"""Read barriers: readers wait until a majority confirms that this voter leads."""

import trio

from metaquorum.metadata.replicated_log import OutcomeUnknownError


class Barrier:
    """Barrier of one reader, which needs all entries up to `commit_index`."""

    def __init__(self, round_number: int, commit_index: int) -> None:
        self.round = round_number
        self.commit_index = commit_index
        self.is_confirmed = False
        self.done = trio.Event()

    async def wait(self) -> None:
        """Wait until it is confirmed that this voter led when the barrier was created.

        Raises OutcomeUnknownError if it cannot be confirmed.
        """
        await self.done.wait()
        if not self.is_confirmed:
            raise OutcomeUnknownError("no majority of the voters answered")


class Barriers:
    def __init__(self) -> None:
        self._waiting: list[Barrier] = []

    def add(self, round_number: int, commit_index: int) -> Barrier:
        """Add a barrier, confirmed once a majority has answered this round or a later one."""
        barrier = Barrier(round_number, commit_index)
        self._waiting.append(barrier)
        return barrier

    def confirm(self, round_number: int) -> None:
        for barrier in self._waiting:
            if barrier.round <= round_number:
                barrier.is_confirmed = True
                barrier.done.set()
        self._waiting = [each for each in self._waiting if not each.is_confirmed]

    def fail(self) -> None:
        for barrier in self._waiting:
            barrier.done.set()
        self._waiting = []
