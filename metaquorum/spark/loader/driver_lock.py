"""Advisory lock: one driver at a time works on an output; no driver waits for a dead one.

The lock is not needed for correctness: plans, results and manifests are created exclusively, and
two drivers at once do no harm. On a local file system the lock is flock(2) on a file, which ends
with its process. In an object store it is an object that the driver renews every RENEW_S: a second
driver watches it for WATCH_S, and takes over unless it changes.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from metaquorum.spark.loader.errors import OutputError, RefusedError
from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.layout import LOCK_FILE, META_FOLDER

RENEW_S: Final = 4.0
WATCH_S: Final = 10.0  # more than two renewals
_LOOK_S: Final = 1.0
_MAX_LOCK_BYTES: Final = 4096


@contextmanager
def hold(storage: Storage, driver_id: str) -> Iterator[None]:
    """Hold the lock while the block runs. Raises RefusedError if another driver has it.

    Blocking, for up to WATCH_S in an object store.
    """
    if isinstance(storage, LocalStorage):
        with _hold_file(storage, driver_id):
            yield
    else:
        with _hold_object(storage, driver_id):
            yield


def _content(driver_id: str, beat: int) -> bytes:
    facts = {"driver": driver_id, "host": socket.gethostname(), "pid": os.getpid(), "beat": beat}
    return json.dumps(facts).encode()


def _refusal(data: bytes, url: str) -> RefusedError:
    who = "another process"
    with suppress(ValueError, RecursionError):
        facts = json.loads(data)
        if isinstance(facts, dict):
            who = f"process {facts.get('pid')} on {facts.get('host')}"
    return RefusedError(
        f"a load into {url} is in progress, by {who}; wait until it ends, or end it"
    )


@contextmanager
def _hold_file(storage: LocalStorage, driver_id: str) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # this system has no flock
        yield
        return
    path = storage.local_path(LOCK_FILE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(os.pread(descriptor, _MAX_LOCK_BYTES, 0), storage.url) from None
        except OSError:  # this file system does not support locks
            yield
            return
        with suppress(OSError):  # e.g. a full disk: the content is only for messages
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _content(driver_id, 0), 0)
        storage.sweep_temporaries(META_FOLDER)  # only drivers write to this folder
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _hold_object(storage: Storage, driver_id: str) -> Iterator[None]:
    _watch(storage)
    ended = threading.Event()

    def renew() -> None:
        beat = 1
        while not ended.wait(RENEW_S):
            with suppress(OutputError):
                storage.overwrite(LOCK_FILE, _content(driver_id, beat))
            beat += 1

    storage.overwrite(LOCK_FILE, _content(driver_id, 0))
    renewing = threading.Thread(target=renew, name="driver-lock", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(OutputError):
            storage.delete(LOCK_FILE)


def _watch(storage: Storage) -> None:
    """Wait until the lock counts as stale. Raises RefusedError if another driver renews it."""
    first = _read(storage)
    if first is None:
        return
    until = time.monotonic() + WATCH_S
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
        now = _read(storage)
        if now is None:
            return
        if now != first:
            raise _refusal(now, storage.url)


def _read(storage: Storage) -> bytes | None:
    try:
        return storage.read(LOCK_FILE, _MAX_LOCK_BYTES)
    except FileNotFoundError:
        return None
