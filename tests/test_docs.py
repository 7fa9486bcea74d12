"""Every command in README.md and docs/ is run.

The word after a fence selects how: `sh` and `python` blocks run one after the other in an empty
folder, and 127.0.0.1:9092 in them means a node that was started for the document; `sh server` is a
node in the foreground, started on a free port and stopped; `sh make` and `sh long` name targets and
scripts that must exist, but would take too long here; `python excerpt` is a part of a module, whose
syntax and imports are checked; `text` and `toml` are not commands. Other blocks are refused.
"""

import ast
import contextlib
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaquorum.simulations.__main__ import main as simulator
from tests.nodes import PATIENCE_S, READY, ROOT, SHARED, Node, free_ports, wait_until

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# A fence may be indented, as a part of a list item.
FENCE = re.compile(r"^([ ]*)```([^`\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FENCE_LINE = re.compile(r"^[ \t>]*(?:```|~~~)", re.MULTILINE)
ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 3 * PATIENCE_S  # time limit of one block

pytestmark = pytest.mark.timeout(3600)


@dataclass(frozen=True)
class Block:
    document: Path
    how: str
    text: str


def blocks(document: Path) -> list[Block]:
    fences = FENCE.findall(document.read_text())
    return [Block(document, how, textwrap.dedent(text)) for _, how, text in fences]


def all_blocks(*how: str) -> list[object]:
    found = [one for document in DOCUMENTS for one in blocks(document) if one.how in how]
    return [pytest.param(one, id=f"{one.document.stem}:{one.text.split()[0]}") for one in found]


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines() if line and not line.startswith("#")]


def test_every_block_says_how_it_is_run() -> None:
    known = {"sh", "python", "sh server", "sh make", "sh long", "python excerpt", "text", "toml"}
    assert {one.how for document in DOCUMENTS for one in blocks(document)} <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_every_fence_belongs_to_a_block(document: Path) -> None:
    fences = FENCE_LINE.findall(document.read_text())
    assert len(fences) == 2 * len(blocks(document))


@pytest.fixture
def environment() -> dict[str, str]:
    """Return an environment in which `mq-server` and `python` are those of this test run."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def runnable(document: Path) -> list[Block]:
    return [one for one in blocks(document) if one.how in ("sh", "python")]


def needs_kcat(block: Block) -> bool:
    return "kcat" in block.text


def without_kcat(document: Path) -> list[Block]:
    return [one for one in runnable(document) if not needs_kcat(one)]


def with_kcat(document: Path) -> list[Block]:
    """Return all blocks of a document of which some need kcat; none of another document."""
    found = runnable(document)
    return found if any(map(needs_kcat, found)) else []


def of_documents(chosen: Callable[[Path], list[Block]]) -> pytest.MarkDecorator:
    """Parametrize a test by the documents that have chosen blocks."""
    found = [document for document in DOCUMENTS if chosen(document)]
    return pytest.mark.parametrize("document", found, ids=lambda document: document.stem)


@of_documents(without_kcat)
def test_commands_work_in_the_order_of_the_document(
    document: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    work_in_order(without_kcat(document), tmp_path, environment)


@pytest.mark.conformance
@pytest.mark.skipif(not shutil.which("kcat"), reason="kcat is not installed")
@of_documents(with_kcat)
def test_commands_work_with_kcat_between_them(
    document: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    work_in_order(with_kcat(document), tmp_path, environment)


def work_in_order(chosen: list[Block], tmp_path: Path, environment: dict[str, str]) -> None:
    """Run the blocks one after the other, in one folder and with one node."""
    node = Node(tmp_path / "node", SHARED)
    node.start()
    # The ports above it are for the other nodes of a cluster, and for examples.
    other_port = str(free_ports([*range(1, 14), *range(100, 105)]))
    folder = tmp_path / "folder"
    folder.mkdir()
    environment |= {"MQ_BOOTSTRAP": node.bootstrap, "HOME": str(folder)}
    try:
        for block in chosen:
            text = block.text.replace(ADDRESS, node.bootstrap).replace("19092", other_port)
            text = text.replace("19093", str(int(other_port) + 1))
            runner = ["bash", "-euo", "pipefail", "-c"] if block.how == "sh" else ["python", "-c"]
            code, output = run([*runner, text], folder, environment)
            assert code == 0, f"{block.text}\n{output}"
            assert "Traceback" not in output
    finally:
        stop_cluster(folder, environment)
        node.stop()


def run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and output; background processes of the block are ended."""
    output = folder.with_name("output")
    with output.open("wb") as file:  # a background process may keep a pipe open
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output.read_text()


def stop_cluster(folder: Path, environment: dict[str, str]) -> None:
    """Stop the cluster that a failed block may have left running."""
    for state in folder.glob("*/cluster.json"):
        stop = ["mq-server", "cluster", "stop", "--dir", state.parent]
        subprocess.run(
            stop, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S
        )


@pytest.mark.parametrize("block", all_blocks("sh server"))
def test_nodes_in_the_foreground_start_and_stop(
    block: Block, tmp_path: Path, environment: dict[str, str]
) -> None:
    (command,) = commands(block.text)
    output, errors = tmp_path / "stdout", tmp_path / "stderr"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"],  # the last of repeated options applies
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=err,
        )
    try:
        wait_until(lambda: READY.match(output.read_text()) or process.poll() is not None)
        assert process.poll() is None, errors.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(TIMEOUT_S)
    assert code == 0


@pytest.mark.parametrize("block", all_blocks("sh make", "sh long"))
def test_what_takes_long_is_there(block: Block) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands(block.text):
        while re.match(r"\w+=", command[0]):  # an environment variable for this command
            command = command[1:]
        if command[0] == "make":
            assert command[1] in targets
        elif command[:2] == [".venv/bin/python", "-m"]:
            assert_names_exist(command[2:])
        elif command[0] == ".venv/bin/python":
            assert (ROOT / command[1]).is_file()
        else:
            assert os.access(ROOT / command[0], os.X_OK)


@pytest.mark.parametrize("block", all_blocks("python excerpt"))
def test_excerpts_parse_and_import_names_that_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
            module = importlib.import_module(str(node.module))
            assert not [name.name for name in node.names if not hasattr(module, name.name)]


def assert_names_exist(words: list[str]) -> None:
    """Check that the tests, scenarios and defects in a call of pytest or simulations exist."""
    if words[0] == "pytest":
        assert (ROOT / words[1]).is_file()
        if "-k" in words:
            name = words[words.index("-k") + 1]
            assert re.search(rf"def test_\w*{name}", (ROOT / words[1]).read_text())
        return
    assert words[0] == "metaquorum.simulations"
    command = simulator.commands[words[1]]
    end = words.index("#") if "#" in words else len(words)
    command.make_context(words[1], words[2:end])
