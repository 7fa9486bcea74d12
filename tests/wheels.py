"""Wheels and source archives of this project, built as `pip` builds them, without its compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.nodes import PATIENCE_S, ROOT
from tests.test_house import project_files


def sources_in(folder: Path) -> Path:
    """Return a copy of the project's files and links, as a build in place would leave files."""
    for path in project_files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for path in (ROOT / "metaquorum").iterdir():
        if path.is_symlink():
            (folder / "metaquorum" / path.name).symlink_to(path.readlink())
    return folder


def built_wheel(sources: Path, folder: Path) -> Path:
    """Return a wheel of a source tree or archive, in an empty folder."""
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """Install a wheel, without its dependencies, in a folder for PYTHONPATH, with `bin` in it."""
    pip("install", "--no-deps", "--target", folder, wheel)
    return folder


def pip(*arguments: object) -> None:
    """Build without a compiler, which is faster; the compiled modules are then interpreted."""
    run("-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)


def run(*arguments: object, cwd: Path | None = None) -> str:
    """Return what this Python prints with these arguments."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        env=os.environ | {"CC": "false"},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
