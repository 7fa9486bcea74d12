"""Programs of Go and packages of Node.js: built once, and kept for later runs.

They are in folders of `CACHE`, which are named after the hash of what they are built from: sources,
versions and options. One process builds and the others wait; no process sees half a folder.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.nodes import skip_without

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = Path(
    os.environ.get("PROGRAMS_PEER_HOME", Path.home() / ".cache" / "mq-peers" / "programs")
)
UNUSED_DAYS: Final = 30  # after which a folder is removed
INSTALL_TIMEOUT_S: Final = 600
NPM: Final = ("npm", "install", "--no-fund", "--no-audit", "--prefix", ".", "kafkajs@2.2.4")
# Without optimisation and without C: the first build takes 30 CPU seconds instead of 46.
GO_BUILD: Final = ("go", "build", "-buildvcs=false", "-trimpath", "-gcflags=all=-N -l")
GO_LINK: Final = ("-ldflags=-s -w",)
GO_ENVIRONMENT: Final = {"CGO_ENABLED": "0"}


def go_program(client: str, package: str) -> str:
    """Return the path of a program of a Go client; skip the test if it cannot be built.

    `client`: franz-go or sarama. All programs of a client are built at once.
    """
    module = HERE / client.replace("-", "_")
    sources = sorted(path for each in (module, HERE / "shared") for path in each.rglob("*.*"))
    parts = [path.read_bytes() for path in sources if path.is_file()]
    options = [*GO_BUILD, *GO_LINK, *(f"{name}={value}" for name, value in GO_ENVIRONMENT.items())]

    def build(folder: Path) -> None:
        _run([*GO_BUILD, *GO_LINK, "-o", f"{folder}/", "./..."], module)

    found = kept(client, [_version("go", "version"), *options, *parts], build)
    return str(found / (package or "conformance"))


def kafkajs() -> Path:
    """Return the folder `node_modules` with kafkajs; skip the test if it cannot be installed."""
    version = _version("node", "--version")
    return kept("kafkajs", [version, *NPM], lambda folder: _run(NPM, folder)) / "node_modules"


def kept(name: str, parts: Iterable[str | bytes], build: Callable[[Path], None]) -> Path:
    """Return the folder for these parts; `build` fills it if it does not exist."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d " % len(data) + data)
    folder = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = CACHE / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            build(new)
            new.rename(folder)
        os.utime(folder)
        _remove_unused(name)
    return folder


def _remove_unused(name: str) -> None:
    for folder in CACHE.glob(f"{name}-*"):
        if folder.stat().st_mtime < time.time() - UNUSED_DAYS * 24 * 3600:
            shutil.rmtree(folder, ignore_errors=True)


def _version(*command: str) -> str:
    if shutil.which(command[0]) is None:
        skip_without(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(command: Iterable[str], folder: Path) -> None:
    """Run an installation, or skip the test: the registry may be unreachable."""
    words = list(command)
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=os.environ | GO_ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        skip_without(f"{words[0]}: {error}")
    if done.returncode:
        skip_without(f"{' '.join(words)}: {done.stderr[-300:]}")
