"""An installation brings one name, `metaquorum`, with all packages below it."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.nodes import PATIENCE_S, ROOT, elsewhere, free_ports
from tests.wheels import built_wheel, installed, run, sources_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(elsewhere()), reason="our own commands and nodes"),
]

BELOW = ("cli", "dataplane", "simulations", "wire")
# An application whose own modules have the names of folders of this project.
APPLICATION = """
import cli, dataplane, simulations, wire
from tests import helper
import metaquorum.client
import metaquorum.cli.server.main, metaquorum.dataplane.node, metaquorum.wire.protocol.apis

assert {module.OWN for module in (cli, dataplane, simulations, wire, helper)} == {True}
print(metaquorum.__file__)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources_in(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(sources, tmp_path_factory.mktemp("wheel"))


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_has_one_name_and_all_packages_below_it(wheel: Path) -> None:
    files = files_in(wheel)
    assert {name.split("/")[0] for name in files} == {"metaquorum", "pyspark_metaquorum"}
    for package in BELOW:
        here = {f"metaquorum/{path.relative_to(ROOT)}" for path in (ROOT / package).rglob("*.py")}
        assert here <= files, package
    assert {"metaquorum/py.typed", "metaquorum/wire/py.typed"} <= files
    assert "metaquorum/simulations/seeds.toml" in files


def test_an_archive_of_the_source_has_no_links_and_builds_the_same_wheel(
    sources: Path, wheel: Path, tmp_path: Path
) -> None:
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run("-c", build, tmp_path, cwd=sources)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        assert not [member.name for member in packed if member.issym() or member.islnk()]
    assert files_in(built_wheel(archive, tmp_path / "wheel")) == files_in(wheel)


def test_an_application_keeps_its_own_modules(wheel: Path, tmp_path: Path) -> None:
    """Names such as `cli` and `wire` are the application's: in its folder and in PYTHONPATH."""
    site = installed(wheel, tmp_path / "site")
    folder = tmp_path / "application"
    for name in (
        "cli",
        "wire",
        "simulations",
        "tests/__init__",
        "tests/helper",
        "dataplane/__init__",
    ):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("OWN = True\n")
    (folder / "main.py").write_text(APPLICATION)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, site)))}

    def said(*command: object) -> str:
        done = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert said(sys.executable, "main.py").strip() == str(site / "metaquorum" / "__init__.py")
    port = free_ports((100,))
    try:
        said(site / "bin/mq-server", "cluster", "start", "--nodes", "1", "--base-port", port)
        said(site / "bin/mq-admin", "-b", f"127.0.0.1:{port}", "topics", "create", "t")
    finally:
        said(site / "bin/mq-server", "cluster", "stop")
    played = said(
        *(sys.executable, "-m", "metaquorum.simulations"),
        *("run", "--scenario", "log-dirs", "--start", 1, "--count", 1),
    )
    assert "log-dirs" in played
