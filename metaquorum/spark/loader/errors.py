"""What can stop a load as a whole; each message is a sentence for the user."""


class LoaderError(Exception):
    """The load did not end: the message says what is wrong, why, and what to do."""


class OutputError(LoaderError):
    """The output cannot be used: not writable, full, damaged, or not a store that will do."""


class RefusedError(LoaderError):
    """The load would break what is committed already, or another one is under way."""


class RangesFailedError(LoaderError):
    """Some ranges could not be loaded; those that were are kept for the next run."""


class RunnerError(LoaderError):
    """What should run the tasks (worker processes, Spark) cannot."""


class UsageError(LoaderError):
    """What was asked for makes no sense; nothing was read."""
