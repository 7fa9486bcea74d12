"""Spark finds the source: from a wheel, as `pip install .` builds one, and after `make`.

Spark's lookup imports what `pkgutil.iter_modules` lists as `pyspark_*` and takes its
`DefaultSource`; `test_source` has Spark itself do that.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.nodes import PATIENCE_S, ROOT
from tests.test_house import project_files

# Without its own site-packages, so that this environment's editable install has no effect.
LOOKUP = """
import sys
sys.path[:0] = sys.argv[1:]
from importlib import import_module
from pkgutil import iter_modules
from pyspark.sql.datasource import DataSource
for info in iter_modules():
    if info.name.startswith("pyspark_"):
        module = import_module(info.name)
        assert issubclass(module.DefaultSource, DataSource)
        source = sys.modules[module.DefaultSource.__module__]
        print(module.DefaultSource.name(), module.__file__, source.__file__)
"""


def found_by_spark(*folders: Path) -> list[str]:
    """Return name and files of the data source, with `folders` first in the path."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    installed = sysconfig.get_path("purelib")
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOOKUP, *map(str, folders), installed],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def expected(folder: Path, sources: Path) -> list[str]:
    return [
        "metaquorum",
        str(folder / "pyspark_metaquorum" / "__init__.py"),
        str(sources / "metaquorum" / "spark" / "source.py"),
    ]


def pip(*arguments: object) -> None:
    """Build without a compiler, which is faster; the compiled modules are then interpreted."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        env=os.environ | {"CC": "false"},
    )
    assert done.returncode == 0, done.stderr


def sources_in(folder: Path) -> Path:
    """Return a copy of the project's files, as a build in place would leave files."""
    for path in project_files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return folder


@pytest.mark.conformance
def test_from_a_wheel(tmp_path: Path) -> None:
    """`pip install .` takes the same two steps."""
    sources, site = sources_in(tmp_path / "sources"), tmp_path / "site"
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, sources)
    (wheel,) = tmp_path.glob("*.whl")
    pip("install", "--no-deps", "--target", site, wheel)
    assert found_by_spark(site) == expected(site, site)


@pytest.mark.conformance
def test_after_make(tmp_path: Path) -> None:
    """Its step for Spark, in an environment where nothing is installed."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    command = ["make", "-C", ROOT, f"VENV={environment}", "spark-discovery"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    site = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    assert found_by_spark(site, ROOT) == expected(site, ROOT)


def test_what_make_lists_is_installed_by_it() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("$(VENV)/installed-%:")[2]
    assert "spark-discovery" in recipe.partition("\n\n")[0]
