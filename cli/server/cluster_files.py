"""Files of `mq-server cluster`: read with checks, and written without following links.

Another user may be able to write to the folder: a file is created exclusively, nothing is written
through a symbolic link, and the content of cluster.json is checked before it is used. Only what an
earlier start created is deleted: the files of `cluster_layout` in the nodes' folders that
cluster.json lists.
"""

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, Final

from metaquorum.cli.server.cluster_layout import MAX_NODES, SECRET, State, server_toml
from metaquorum.cli.server.quorum_options import QUORUM_SIZES
from metaquorum.quorum.channel.identity import create_secret

MAX_STATE_BYTES: Final = 1 << 20
MAX_PORT: Final = 65_535
_MADE_IN_A_NODE: Final = ("server.toml", "log", "data")


class FilesError(Exception):
    """The folder cannot be used; the message is for the user."""


def read_state(file: Path) -> State:
    """Return the state that `file` has. Raises ValueError if `write_state` did not write it."""
    with file.open("rb") as stream:
        content = stream.read(MAX_STATE_BYTES + 1)
    if len(content) > MAX_STATE_BYTES:
        raise ValueError("too large")
    found = json.loads(content)
    if not isinstance(found, dict) or not found.keys() <= {each.name for each in fields(State)}:
        raise ValueError("unknown keys")
    values: dict[str, Any] = {"nodes": 0, "base_port": 0, **found}
    return _checked(State(**values))


def _checked(state: State) -> State:
    """Return the state. Raises ValueError if a value is not one that a start would write."""

    def is_port(value: Any) -> bool:
        return type(value) is int and 1 <= value <= MAX_PORT

    def are_by_node(values: Any, kinds: tuple[type, ...]) -> bool:
        return isinstance(values, dict) and all(
            node in map(str, state.all_nodes) and type(value) in kinds and value > 1
            for node, value in values.items()
        )

    if (
        type(state.nodes) is not int
        or not 1 <= state.nodes <= MAX_NODES
        or not is_port(state.base_port)
        or not (state.metrics_base_port is None or is_port(state.metrics_base_port))
        or type(state.controllers) is not int
        or state.controllers not in QUORUM_SIZES
        or state.controllers > state.nodes
        or type(state.separate) is not bool
        or type(state.failed) is not bool
        or type(state.cluster_id) is not str
        or not are_by_node(state.pids, (int,))
        or not are_by_node(state.started, (int, float))
    ):
        raise ValueError("not the state of a cluster")
    return state


def write_state(file: Path, state: State) -> None:
    """Replace `file` by a new file with the state."""
    number, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with open(number, "w") as stream:
        stream.write(json.dumps(asdict(state), indent=1) + "\n")
    os.replace(temporary, file)


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, since configs may contain passwords."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def open_log(home: Path) -> IO[bytes]:
    """Open the log of the node in `home`, to append. Raises FilesError if it is a link."""
    path = home / "log"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        return open(os.open(path, flags, 0o600), "ab")
    except OSError as error:
        raise FilesError(f"cannot write {path}: {error.strerror}") from None


def homes(folder: Path, state: State) -> list[Path]:
    return [folder / f"node{node}" for node in state.all_nodes]


def check_room(folder: Path, state: State, earlier: State | None) -> None:
    """Raise FilesError if a node's folder exists that the earlier start has not created."""
    created = [] if earlier is None else homes(folder, earlier)
    for home in homes(folder, state):
        if home.is_symlink() or (home.exists() and home not in created):
            raise FilesError(f"{home} was not created by this command; choose another --dir")


def lay_out(folder: Path, state: State, configs: Mapping[str, str]) -> None:
    """Write the settings of each node, and the cluster's secret."""
    folder.mkdir(parents=True, exist_ok=True)
    for node, home in zip(state.all_nodes, homes(folder, state), strict=True):
        home.mkdir(exist_ok=True)
        write_private(home / "server.toml", server_toml(state, node, folder, configs))
    if not state.is_alone:
        create_secret(str(folder / SECRET))


def remove(folder: Path, state: State) -> list[str]:
    """Delete what a start with that state has created; return the names of the nodes' folders.

    Other files in these folders stay. Raises FilesError if a folder is a symbolic link.
    """
    removed = []
    for home in homes(folder, state):
        if home.is_symlink():
            raise FilesError(f"{home} is a symbolic link, which this command did not create")
        for path in _made(home):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if home.is_dir():
            removed.append(home.name)
            if not any(home.iterdir()):
                home.rmdir()
    folder.joinpath(SECRET).unlink(missing_ok=True)
    return removed


def _made(home: Path) -> list[Path]:
    return [home / name for name in _MADE_IN_A_NODE]


def kept_configs(folder: Path, node: int) -> dict[str, str]:
    """Return the worker configs in the node's server.toml. Raises FilesError if it is not TOML."""
    path = folder / f"node{node}" / "server.toml"
    try:
        configs = tomllib.loads(path.read_text()).get("config", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FilesError(f"cannot read {path}: {error}") from None
    return {name: str(value) for name, value in configs.items()}
