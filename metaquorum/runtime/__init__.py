"""The interfaces to the machine (Clock, Network, Disk), and the real ones behind them.

Imports nothing of ours; everything above `wire` may import it. `interfaces` does no I/O; `system`
is the only module that touches sockets, files and clocks for the node, and the simulator has its
own. `own_processes` starts this program again; `one_line` and `whole_numbers` are for text that
comes from outside: they stand here because every package above needs them.
"""

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
