"""Errors that stop a whole load; each message is a sentence for the user."""


class LoaderError(Exception):
    """The load failed; the message says what is wrong, why, and what to do."""


class OutputError(LoaderError):
    """The output cannot be used: not writable, full, damaged, or without exclusive creation."""


class RefusedError(LoaderError):
    """The load would contradict committed loads, or another load is running."""


class RangesFailedError(LoaderError):
    """Some ranges could not be loaded; the results of the others are kept for the next run."""


class RunnerError(LoaderError):
    """The runner of the tasks (worker processes, Spark) cannot run them."""


class UsageError(LoaderError):
    """The arguments of the load are invalid; no record was read."""
