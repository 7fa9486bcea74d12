"""The levels of the process's loggers, which operators change while a node runs.

A logger has the name of its package or module (`metaquorum.dataplane`,
`metaquorum.dataplane.log.recovery.recovery`), or `root`. One without a level of its own has that of
the next package above it that has one, at last that of the root. Names of levels are those of Kafka
(log4j); the root always has one. Levels are not stored: a restart begins with the level of the
node's options.

Only loggers that exist can be named, and packages above them, so that no client creates loggers.
Each change is logged, at any level; a client that has caused too many lines can change
nothing, so no client can hide what it changes.
"""

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from metaquorum.dataplane.instruments.log_rate_limit import LogRateLimiter

ROOT: Final = "root"
TRACE: Final = 5  # below DEBUG; nothing here logs at it
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "DEBUG": logging.DEBUG,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
        "INFO": logging.INFO,
        "TRACE": TRACE,
        "WARN": logging.WARNING,
    }
)
_FROM_HIGHEST: Final = sorted(LEVELS.items(), key=lambda each: -each[1])

# Logger with a level of its own that no client can change: it logs all changes.
OWN: Final = __name__
SHOWN: Final = 20  # changes of a request that are shown

log = logging.getLogger(OWN)
log.setLevel(logging.WARNING)


class LogLevels:
    def __init__(
        self,
        monotonic: Callable[[], float],
        manager: logging.Manager = logging.Logger.manager,
    ) -> None:
        self._monotonic = monotonic
        self._manager = manager
        self._lines = LogRateLimiter(monotonic())

    def knows(self, name: str) -> bool:
        return name == ROOT or name in self._manager.loggerDict

    def in_force(self) -> dict[str, str]:
        """Return the level of each logger, by name."""
        names = sorted({ROOT, *self._manager.loggerDict})
        return {name: _name_of(self._effective(name)) for name in names}

    def set(self, changes: Mapping[str, str | None], principal: str, address: str) -> bool:
        """Give known loggers each one of LEVELS; None: it has that of the package above it again.

        The root cannot be without a level, and that of OWN cannot be changed. A line says which
        client has changed them. Nothing is changed, and the result is False, if the client has
        caused too many lines.
        """
        assert all(map(self.knows, changes))
        assert OWN not in changes
        assert changes.get(ROOT, "") is not None
        omitted = self._lines.take(address, self._monotonic())
        if omitted is None:
            return False
        shown = [
            f"{name} to {level or 'that of its package'}, it was {_name_of(self._effective(name))}"
            for name, level in islice(changes.items(), SHOWN)
        ]
        if len(changes) > SHOWN:
            shown.append(f"{len(changes) - SHOWN} more")
        client, text = f"{principal!r} at {address}", "; ".join(shown)
        log.warning("client %s sets log levels: %s%s", client, text, omitted)
        for name, level in changes.items():
            logger = self._manager.root if name == ROOT else self._manager.getLogger(name)
            logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
        return True

    def _effective(self, name: str) -> int:
        """Return the level of a logger, without creating one for a package."""
        while name and name != ROOT:
            logger = self._manager.loggerDict.get(name)
            if isinstance(logger, logging.Logger) and logger.level:
                return logger.level
            name = name.rpartition(".")[0]
        return self._manager.root.level


def _name_of(level: int) -> str:
    """Return the name of the level at which lines of the number `level` appear."""
    return next((name for name, number in _FROM_HIGHEST if level >= number), "TRACE")
