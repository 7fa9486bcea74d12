"""File system of a simulated machine, which determines what a power loss leaves.

It has two states. Programs read the *cache*; kill -9 leaves it as it is. The *medium* has the data
that was made durable:

    bytes of a file       medium after `sync` of that file; until then its writes are pending
    names in a folder     medium after `sync_dir` of that folder; until then pending

A power loss draws, from the world's seed, the fate of the pending parts. For each file one of:
nothing reached the medium; a prefix of the writes did, the last one torn at any byte; single pages
did, in any order, missing ones reading as before or as zeros; everything did. For the pending names
one of: none survived, or all; a prefix of them did, as in a file system that journals them in
order; each has a fate of its own, as POSIX allows: a removal may survive and an earlier rename not.
The effect of one call is kept whole (a rename is atomic), and never without the earlier changes of
the same names. Then cache and medium are equal again.

A failed `sync` is as in Linux: the pages count as clean, stay readable, and never become durable
unless they are written again. (Truncated sizes are in the file system's journal, not in pages.)
"""

import errno
import random
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from metaquorum.runtime.interfaces import Identity
from metaquorum.simulations.kernel.network import os_error

PAGE_BYTES: Final = 512
UNLIMITED_BYTES: Final = 1 << 40
Fate = Literal["nothing", "prefix", "pages", "everything"]
FATES: Final[tuple[Fate, ...]] = ("nothing", "prefix", "pages", "everything")
NameFate = Literal["none", "all", "prefix", "each"]
NAME_FATES: Final[tuple[NameFate, ...]] = ("none", "all", "prefix", "each", "each")


class Inode:
    __slots__ = ("data", "durable", "pending", "version")

    def __init__(self) -> None:
        self.version = 0  # changes with the durable content
        self.data = bytearray()
        self.durable = bytearray()
        # (position, bytes) of a write, (size, None) of a truncation, in order.
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, position: int, data: bytes) -> None:
        _write(self.data, position, data)
        self.pending.append((position, data))

    def truncate(self, size: int) -> None:
        _truncate(self.data, size)
        self.pending.append((size, None))

    def sync(self) -> None:
        if self.pending:
            _apply(self.durable, self.pending)
            self.pending.clear()
            self.version += 1

    def fail_to_sync(self) -> None:
        self.pending = [(size, data) for size, data in self.pending if data is None]

    def lose_power(self, fate: Fate, draw: random.Random) -> None:
        if fate == "everything":
            self.sync()
        elif fate == "prefix" and self.pending:
            self._tear(draw)
        elif fate == "pages" and self.pending:
            self._scatter(draw)
        self.pending.clear()
        self.version += 1
        self.data = bytearray(self.durable)

    def _tear(self, draw: random.Random) -> None:
        whole = draw.randrange(len(self.pending))
        survived = self.pending[:whole]
        position, torn = self.pending[whole]
        if torn:
            survived.append((position, torn[: draw.randrange(len(torn) + 1)]))
        _apply(self.durable, survived)

    def _scatter(self, draw: random.Random) -> None:
        before, after = self.durable, bytearray(self.durable)
        _apply(after, self.pending)
        sizes = [size for size, data in self.pending if data is None]
        shortest = min([len(before), len(after), *sizes])
        _truncate(after, draw.choice([len(after), draw.randint(shortest, len(after))]))
        for page in range(0, len(after), PAGE_BYTES):
            end = min(page + PAGE_BYTES, len(after))
            old = before[page:end].ljust(end - page, b"\0")
            if after[page:end] != old and draw.random() < 0.5:
                after[page:end] = old
        self.durable = after


def _write(target: bytearray, position: int, data: bytes) -> None:
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


def _truncate(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


def _apply(target: bytearray, changes: list[tuple[int, bytes | None]]) -> None:
    for position, data in changes:
        if data is None:
            _truncate(target, position)
        else:
            _write(target, position, data)


class Folder:
    __slots__ = ("durable", "entries", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number  # no other folder of the medium has it, nor had it before
        self.entries: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}


Node = Inode | Folder


@dataclass(slots=True, eq=False)
class NameChange:
    """Change of names by one system call, which survives as a whole or not at all."""

    edits: list[tuple[Folder, str, Node | None]]

    @property
    def entries(self) -> set[tuple[int, str]]:
        """Directory entries that are changed. A later change of an entry needs the earlier one."""
        return {(id(folder), name) for folder, name, _ in self.edits}

    def make_durable(self) -> None:
        for folder, name, node in self.edits:
            if node is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = node


@dataclass(slots=True)
class Lost:
    """Counters of a power loss, for the gates: files, bytes and names lost, files torn."""

    files: int = 0
    bytes: int = 0
    names: int = 0
    torn: int = 0
    # Whether a change of names survived that came after a lost one.
    out_of_order: bool = False


@dataclass(slots=True)
class Storage:
    """File system of one machine."""

    root: Folder = field(default_factory=Folder)
    capacity_bytes: int | None = None
    pending_names: list[NameChange] = field(default_factory=list)
    power_cuts: int = 0
    # Number of times that the disk was put back to an older image.
    images_put_back: int = 0
    # Number of times that the machine got another medium: an empty one, or an older image.
    medium: int = 0
    folders_made: int = 0

    def image(self) -> "Storage":
        """Copy the disk as a virtual machine's snapshot does: all written data, durable or not."""
        return deepcopy(self)

    # Reading

    def find(self, path: str) -> Node:
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Folder):
                raise os_error(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                raise os_error(errno.ENOENT, path)
            node = found
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if not isinstance(node, Folder):
            raise os_error(errno.ENOTDIR, path)
        return node

    def identity(self, path: str) -> Identity:
        """Return the medium of a folder, and the folder's number there."""
        return self.medium, self.folder(path).number

    def file(self, path: str) -> Inode:
        node = self.find(path)
        if not isinstance(node, Inode):
            raise os_error(errno.EISDIR, path)
        return node

    def files(self, under: str = "/") -> dict[str, Inode]:
        """Return every file below a folder by its path, in order of paths."""
        found: dict[str, Inode] = {}

        def walk(folder: Folder, prefix: str) -> None:
            for name, node in sorted(folder.entries.items()):
                if isinstance(node, Inode):
                    found[f"{prefix}/{name}"] = node
                else:
                    walk(node, f"{prefix}/{name}")

        walk(self.folder(under), under.rstrip("/"))
        return found

    def durable_files(self, under: str) -> dict[str, Inode]:
        """Return the files of one folder, by name, that a power loss would leave."""
        folder: Node | None = self.root
        for name in _parts(under):
            folder = folder.durable.get(name) if isinstance(folder, Folder) else None
        if not isinstance(folder, Folder):
            return {}
        return {n: node for n, node in sorted(folder.durable.items()) if isinstance(node, Inode)}

    # Changing

    def write(self, inode: Inode, position: int, data: bytes) -> None:
        if self.capacity_bytes is not None:
            growth = max(position + len(data) - len(inode.data), 0)
            free = self.free_bytes()
            if growth > free:
                inode.write(position, data[: len(data) - (growth - free)])
                raise os_error(errno.ENOSPC)
        inode.write(position, data)

    def used_bytes(self) -> int:
        return sum(len(inode.data) for inode in self.files().values())

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def total_bytes(self) -> int:
        return UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes

    def make_dirs(self, path: str) -> None:
        folder = self.root
        for name in _parts(path):
            node = folder.entries.get(name)
            if node is None:
                self.folders_made += 1
                node = Folder(self.folders_made)
                self._rename_nodes([(folder, name, node)])
            if not isinstance(node, Folder):
                raise os_error(errno.ENOTDIR, path)
            folder = node

    def create(self, path: str) -> Inode:
        folder, name = self._parent(path)
        inode = Inode()
        self._rename_nodes([(folder, name, inode)])
        return inode

    def rename(self, source: str, target: str) -> None:
        from_folder, from_name = self._parent(source)
        to_folder, to_name = self._parent(target)
        node = self.find(source)
        replaced = to_folder.entries.get(to_name)
        if isinstance(replaced, Folder):
            if isinstance(node, Inode):
                raise os_error(errno.EISDIR, target)
            if replaced.entries:
                raise os_error(errno.ENOTEMPTY, target)
        self._rename_nodes([(from_folder, from_name, None), (to_folder, to_name, node)])

    def remove(self, path: str) -> None:
        self.file(path)
        folder, name = self._parent(path)
        self._rename_nodes([(folder, name, None)])

    def remove_dir(self, path: str) -> None:
        if self.folder(path).entries:
            raise os_error(errno.ENOTEMPTY, path)
        folder, name = self._parent(path)
        self._rename_nodes([(folder, name, None)])

    def sync_all(self) -> None:
        for inode in self.files().values():
            inode.sync()
        self._settle_names([True] * len(self.pending_names))

    def sync_dir(self, path: str) -> None:
        folder = self.folder(path)
        durable: list[bool] = []
        needed: set[tuple[int, str]] = set()
        for change in reversed(self.pending_names):  # with earlier changes of its entries
            is_here = any(edited is folder for edited, _, _ in change.edits)
            durable.append(is_here or not needed.isdisjoint(change.entries))
            if durable[-1]:
                needed |= change.entries
        self._settle_names(durable[::-1])

    def _parent(self, path: str) -> tuple[Folder, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        return self.folder(head or "/"), name

    def _rename_nodes(self, edits: list[tuple[Folder, str, Node | None]]) -> None:
        for folder, name, node in edits:
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node
        self.pending_names.append(NameChange(edits))

    # Power losses and damage

    def lose_power(self, draw: random.Random) -> Lost:
        lost = Lost()
        self.power_cuts += 1
        survived = self._names_that_survive(draw.choice(NAME_FATES), draw)
        lost.names = survived.count(False)
        lost.out_of_order = True in survived[survived.index(False) :] if lost.names else False
        self._settle_names(survived)
        self.pending_names.clear()
        self._forget(self.root, draw, lost)
        return lost

    def _names_that_survive(self, fate: NameFate, draw: random.Random) -> list[bool]:
        changes = self.pending_names
        if fate != "each":
            prefix = draw.randint(0, len(changes)) if fate == "prefix" else len(changes)
            return [fate != "none" and number < prefix for number in range(len(changes))]
        survived: list[bool] = []
        lost: set[tuple[int, str]] = set()
        share = draw.choice([0.2, 0.5, 0.8])
        for change in changes:
            survived.append(lost.isdisjoint(change.entries) and draw.random() < share)
            if not survived[-1]:
                lost |= change.entries
        return survived

    def _settle_names(self, durable: list[bool]) -> None:
        left: list[NameChange] = []
        for change, settled in zip(self.pending_names, durable, strict=True):
            if settled:
                change.make_durable()
            else:
                left.append(change)
        self.pending_names = left

    def _forget(self, folder: Folder, draw: random.Random, lost: Lost) -> None:
        folder.entries = dict(folder.durable)
        for _, node in sorted(folder.entries.items()):
            if isinstance(node, Folder):
                self._forget(node, draw, lost)
            elif node.pending or node.data != node.durable:
                before = len(node.data)
                fate = draw.choice(FATES)
                node.lose_power(fate, draw)
                lost.files += 1
                lost.bytes += max(before - len(node.data), 0)
                lost.torn += fate in ("prefix", "pages")

    def flip(self, inode: Inode, position: int, bit: int) -> None:
        """Flip a bit on the medium, and in the cache, which is read from it."""
        inode.sync()
        inode.data[position] ^= 1 << bit
        inode.durable = bytearray(inode.data)
        inode.version += 1


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    assert path.startswith("/"), path
    return tuple(part for part in path.split("/") if part not in ("", "."))
