"""The three seams to the machine (Clock, Network, Disk), and the real ones behind them."""

from metaquorum.runtime.interfaces import (
    Buffer,
    Clock,
    Connection,
    Disk,
    File,
    Listener,
    Network,
    Runtime,
    StorageError,
    sleep,
    write_atomically,
)

__all__ = [
    "Buffer",
    "Clock",
    "Connection",
    "Disk",
    "File",
    "Listener",
    "Network",
    "Runtime",
    "StorageError",
    "sleep",
    "write_atomically",
]
