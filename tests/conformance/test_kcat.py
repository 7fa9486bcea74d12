"""kcat, with the command lines of its users."""

import json
import shutil
import subprocess
from collections.abc import Sequence

import pytest

from tests.conformance.clients import CODECS, create
from tests.nodes import PATIENCE_S, Peer, unique

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not shutil.which("kcat"), reason="kcat not installed"),
]


def kcat(node: Peer, *arguments: str, stdin: bytes = b"") -> bytes:
    command: Sequence[str] = ["kcat", "-m", "120", "-b", node.bootstrap, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_lines_come_back(node: Peer, codec: str) -> None:
    topic = create(node.bootstrap, unique("kcat"))
    lines = b"".join(b"line %d %s\n" % (i, b"x" * (i % 300)) for i in range(2000))
    kcat(node, "-P", "-t", topic, "-p", "0", "-z", codec, stdin=lines)
    assert kcat(node, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q") == lines


def test_keys_headers_and_places(node: Peer) -> None:
    topic = create(node.bootstrap, unique("kcat"), 3)
    kcat(
        node, "-P", "-t", topic, "-p", "2", "-K", ":", "-H", "a=1", "-H", "b=2", stdin=b"k:v\nl:w\n"
    )
    shown = kcat(
        node, "-C", "-t", topic, "-p", "2", "-o", "0", "-e", "-q", "-f", "%p %o %k %s %h %S\\n"
    )  # fmt: skip
    assert shown == b"2 0 k v a=1,b=2 1\n2 1 l w a=1,b=2 1\n"


def test_reading_from_the_end_backwards(node: Peer) -> None:
    topic = create(node.bootstrap, unique("kcat"))
    kcat(node, "-P", "-t", topic, "-p", "0", stdin=b"1\n2\n3\n4\n5\n")
    assert kcat(node, "-C", "-t", topic, "-p", "0", "-o", "-2", "-e", "-q") == b"4\n5\n"
    assert kcat(node, "-C", "-t", topic, "-p", "0", "-o", "1", "-c", "2", "-q") == b"2\n3\n"


def test_a_file_is_one_record(node: Peer) -> None:
    topic = create(node.bootstrap, unique("kcat"))
    kcat(node, "-P", "-t", topic, "-p", "0", __file__)
    with open(__file__, "rb") as file:
        content = file.read()
    assert kcat(node, "-C", "-t", topic, "-p", "0", "-o", "0", "-c", "1", "-D", "", "-q") == content


def test_metadata_is_listed(node: Peer) -> None:
    topic = create(node.bootstrap, unique("kcat"), 4)
    listed = json.loads(kcat(node, "-L", "-J", "-t", topic))
    assert [broker["name"] for broker in listed["brokers"]] == [node.bootstrap]
    (found,) = listed["topics"]
    assert [(p["partition"], p["leader"]) for p in found["partitions"]] == [
        (i, 1) for i in range(4)
    ]


def test_offsets_by_time(node: Peer) -> None:
    topic = create(node.bootstrap, unique("kcat"))
    kcat(node, "-P", "-t", topic, "-p", "0", stdin=b"1\n2\n3\n")
    for timestamp, offset in (("-2", 0), ("-1", 3), ("0", 0)):
        shown = kcat(node, "-Q", "-t", f"{topic}:0:{timestamp}").decode()
        assert shown.split() == [topic, "[0]", "offset", str(offset)]
