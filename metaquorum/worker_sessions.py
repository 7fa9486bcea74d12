"""What the active controller knows of its workers that is in no log: who was heard of, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """A worker is alive, and has taken in the metadata before `applied_offset`."""

    worker_id: int
    broker_epoch: int
    applied_offset: int
    wants_shutdown: bool = False
    offline_log_dirs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the controller makes of that worker; `end_offset` is of the metadata committed."""

    is_fenced: bool
    is_caught_up: bool
    should_shut_down: bool
    end_offset: int
