"""Spark finds the source: from a wheel, as `pip install .` builds one, and after `make`.

Spark's lookup imports what `pkgutil.iter_modules` lists as `pyspark_*` and takes its
`DefaultSource`; `test_source` has Spark itself do that.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.nodes import PATIENCE_S, ROOT
from tests.wheels import built_wheel, installed, sources_in

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
    here = sysconfig.get_path("purelib")
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOOKUP, *map(str, folders), here],
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


@pytest.mark.conformance
def test_from_a_wheel(tmp_path: Path) -> None:
    """`pip install .` takes the same two steps."""
    wheel = built_wheel(sources_in(tmp_path / "sources"), tmp_path / "wheel")
    site = installed(wheel, tmp_path / "site")
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
