"""The programs execute no Python file in the current folder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from metaquorum.cli.admin.main import main as mq_admin
from metaquorum.cli.server.main import main as mq_server
from tests.cli.admin.running import environment
from tests.nodes import PATIENCE_S, ROOT, elsewhere, free_ports

pytestmark = pytest.mark.skipif(bool(elsewhere()), reason="our own commands and nodes")

BIN = Path(sys.executable).parent
MARK = "executed"
# Modules of this project, its dependencies and the standard library, as files and as packages.
MODULES = ("wire", "trio", "click", "msgpack", "h11", "json", "logging", "random", "sitecustomize")
PACKAGES = ("metaquorum", "dataplane", "cli", "simulations")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Create a folder with modules that record their execution."""
    folder = tmp_path / "here"
    folder.mkdir()
    code = (
        "import os, sys\n"
        f"with open({str(tmp_path / MARK)!r}, 'a') as file:\n"
        "    file.write(f'{__name__} by {sys.argv}\\n')\n"
        "os._exit(99)\n"
    )
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
    return folder


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run an installed program in that folder."""
    return subprocess.run(
        [BIN / words[0], *words[1:]],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def executed(folder: Path) -> str:
    mark = folder.parent / MARK
    return mark.read_text() if mark.exists() else ""


def commands(name: str, command: click.Command) -> Iterator[tuple[str, ...]]:
    """Return the words of every command below this one."""
    if not isinstance(command, click.Group):
        yield (name,)
        return
    with click.Context(command) as context:
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            for words in commands(each, below):
                yield (name, *words)


# Runs an installed program with each line of a file as its words, one after the other, and checks
# that none of them makes Python look for modules in the current folder.
EACH = """
import os, runpy, sys
program, lines = sys.argv[1:]
sys.path[0] = os.path.dirname(program)
with open(lines) as file:
    every = [line.split() for line in file]
for words in every:
    sys.argv[:] = [program, *words, "--help"]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, words
    assert not {"", ".", os.getcwd()} & set(sys.path), words
"""


def test_no_command_executes_the_folder_it_is_called_in(hostile: Path, tmp_path: Path) -> None:
    """All commands of a program in one process, and two in processes of their own."""
    every = [*commands("mq-server", mq_server), *commands("mq-admin", mq_admin)]
    assert len(every) > 50
    each = tmp_path / "each" / "each.py"
    each.parent.mkdir()
    each.write_text(EACH)
    for program in ("mq-server", "mq-admin"):
        lines = [" ".join(words) for name, *words in every if name == program]
        words = each.with_name("words")
        words.write_text("\n".join(lines))
        done = subprocess.run(
            [sys.executable, each, BIN / program, words],
            cwd=hostile,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert not executed(hostile)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Usage: ") == len(lines)
        alone = run(hostile, *next(one for one in every if one[0] == program), "--help")
        assert alone.returncode == 0, alone.stderr
        assert "Usage: " in alone.stdout
    assert not executed(hostile)


def test_no_node_of_a_cluster_executes_the_folder_it_is_started_in(hostile: Path) -> None:
    port = str(free_ports((100,)))
    began = run(hostile, "mq-server", "cluster", "start", "--nodes", "1", "--base-port", port)
    try:
        assert not executed(hostile), "a node executed a module of the folder"
        assert began.returncode == 0, began.stdout + began.stderr
        for words in (("restart", "1"), ("roll",), ("status",)):
            done = run(hostile, "mq-server", "cluster", *words)
            assert done.returncode == 0, done.stdout + done.stderr
        topic = run(hostile, "mq-admin", "-b", f"127.0.0.1:{port}", "topics", "create", "t")
        assert topic.returncode == 0, topic.stderr
    finally:
        run(hostile, "mq-server", "cluster", "stop")
    assert not executed(hostile)


def test_neither_the_demo_s_commands_nor_the_simulator_s_workers_execute_it(hostile: Path) -> None:
    """A user runs these modules by name; here without the current folder in the path."""
    demo = (
        "from metaquorum.cli.demo import run;"
        " run('metaquorum.cli.admin.main', 'mq-admin', '--version')"
    )
    simulator = (
        "import sys; sys.argv[1:] = 'run --scenario log-dirs --start 1 --count 2'.split();"
        " from metaquorum.simulations.__main__ import main; main()"
    )
    for program in (demo, simulator):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            cwd=hostile,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert not executed(hostile)
        assert done.returncode == 0, done.stdout + done.stderr


def test_whoever_runs_the_sources_gets_nodes_of_the_same_sources(tmp_path: Path) -> None:
    """Running `python -m` in the folder of the sources is the user's own choice."""
    program = (
        "import subprocess, sys\n"
        "from metaquorum.runtime.own_processes import ROOT, own_command, own_environment\n"
        "found = subprocess.run([*own_command('where'), '-'], env=own_environment(),"
        " capture_output=True, text=True, check=True).stdout.strip()\n"
        "assert found == str(ROOT), (found, ROOT)\n"
    )
    sources = tmp_path / "sources"
    own = Path("metaquorum") / "runtime" / "own_processes.py"
    (sources / own.parent).mkdir(parents=True)
    (sources / "metaquorum" / "__init__.py").touch()
    (sources / own.parent / "__init__.py").touch()
    (sources / own).write_text((ROOT / own).read_text())
    (sources / "where.py").write_text(
        "from metaquorum.runtime.own_processes import ROOT\nprint(ROOT)\n"
    )
    (sources / "program.py").write_text(program)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-m", "program"], cwd=sources, env=bare, check=True, timeout=PATIENCE_S
    )
