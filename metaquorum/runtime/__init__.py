"""Interfaces to the machine (Clock, Network, Disk), and their real implementations.

Imports only `metaquorum.wire.primitives`; everything above `wire` may import it. Start with
`interfaces`, which does no I/O. `system` is the only module through which a node uses sockets,
files and clocks; the simulator has implementations of its own. `own_processes` starts child
processes of this program; `one_line` and `whole_numbers` process untrusted text, which every
package above needs.
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
    is_out_of_descriptors,
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
    "is_out_of_descriptors",
    "sleep",
    "write_atomically",
]
