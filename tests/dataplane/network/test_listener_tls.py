"""TLS of a listener: the client's principal after the handshake, and replaced files."""

import logging
import ssl
from pathlib import Path

import pytest

from metaquorum.dataplane.network.listener_tls import ListenerTls, TlsSettings
from metaquorum.dataplane.network.principal_mapping import PrincipalMapping
from metaquorum.quorum.rpc.methods import ANONYMOUS
from metaquorum.security.tls_context import TlsFiles
from tests.metaquorum.security.certificates import Authority


def listener(authority: Authority, rules: str = "DEFAULT") -> ListenerTls:
    store = authority.store("node")
    files = TlsFiles(store, store, authority.path)
    return ListenerTls(TlsSettings(files, "requested", PrincipalMapping(rules)))


def shaken(tls: ListenerTls, authority: Authority, own: TlsFiles | None) -> ssl.SSLObject:
    """Return the server's side of the connection."""
    context = ssl.create_default_context(cafile=authority.path)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(back, there, server_hostname="localhost")
    server = tls.context.current.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return server


def test_who_shows_a_certificate_is_called_as_the_rules_say(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.files("alice", common_name="alice")
    tls = listener(authority, "RULE:^CN=(.*?),.*$/$1/U")
    assert tls.principal_of(shaken(tls, authority, own)) == "User:ALICE"
    plain = listener(authority)
    name = plain.principal_of(shaken(plain, authority, own))
    assert name.startswith("User:CN=alice,")


def test_who_shows_none_is_anonymous(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = listener(authority)
    assert tls.principal_of(shaken(tls, authority, None)) == ANONYMOUS


def test_replaced_files_are_in_force_unless_they_are_of_no_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    tls = listener(authority)
    first = tls.context.current
    tls.context.reload()
    assert tls.context.current is first
    path = Path(authority.store("node"))
    tls.context.reload()
    second = tls.context.current
    assert second is not first
    path.write_text("nothing")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            tls.context.reload()
    assert tls.context.current is second
    assert len(caplog.records) == 1
    path.unlink()
    tls.context.reload()
    assert tls.context.current is second
