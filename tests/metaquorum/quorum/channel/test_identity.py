"""The cluster secret: its file, and the nodes that need it."""

import logging
import os
from pathlib import Path

import pytest

from metaquorum.quorum.channel import (
    ChannelIdentity,
    SecretError,
    create_secret,
    read_secret,
    require_secret,
)


def test_a_new_secret_is_long_and_its_owner_s_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "secret")
    secret = create_secret(path)
    assert len(secret) >= 32
    assert read_secret(path) == secret
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(SecretError, match="exists already"):
        create_secret(path)
    assert read_secret(path) == secret


def test_a_secret_may_be_any_bytes_without_the_white_space_around_them(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"  sixteen bytes and\xff more \r\n")
    path.chmod(0o640)
    assert read_secret(str(path)) == b"sixteen bytes and\xff more"


def test_a_secret_that_others_may_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 40)
    path.chmod(0o644)
    with pytest.raises(SecretError, match=f"chmod 600 {path}"):
        read_secret(str(path))


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"short\n", "fewer than 16"), (b" " * 30, "fewer than 16"), (b"x" * 5000, "more than 4096")],
)
def test_a_secret_of_no_use_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretError, match=why):
        read_secret(str(path))


def test_a_secret_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"cannot read .*nowhere: No such file"):
        read_secret(str(tmp_path / "nowhere"))
    with pytest.raises(SecretError, match="cannot create"):
        create_secret(str(tmp_path / "nowhere" / "secret"))


def test_a_secret_is_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    me = ChannelIdentity("cluster", 1, b"a very secret secret")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("%s %r", me, me)
    assert "very secret" not in caplog.text + str(me) + repr(me)


def test_only_a_node_alone_needs_no_secret() -> None:
    require_secret(None, 1, {1})
    require_secret(b"x" * 16, 2, {1})
    for node_id, controllers in ((2, {1}), (1, {1, 2, 3})):
        with pytest.raises(SecretError, match="needs a cluster secret"):
            require_secret(None, node_id, controllers)
    with pytest.raises(SecretError, match="fewer than 16"):
        ChannelIdentity("cluster", 1, b"short")
