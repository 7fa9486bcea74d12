"""TLS over `Connection`: real, fragmenting and hostile ones, and against Python's own TLS."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.quorum.channel import Caller, Endpoint, HandshakeError, StreamKind
from metaquorum.runtime.interfaces import Connection, Runtime
from metaquorum.security.tls_connection import (
    MAX_ANSWER_BYTES,
    MAX_RECORD_BYTES,
    RECORD_HEADER_BYTES,
    RECORDS_AT_ONCE,
    SEND_BYTES,
    TlsConnection,
    TlsError,
    _Records,
)
from metaquorum.security.tls_context import TlsFiles, TlsFilesError, client_context, server_context
from metaquorum.simulations.kernel.world import World
from tests.examples import examples
from tests.metaquorum.quorum.channel.nodes import (
    HOST,
    endpoint,
    in_trio,
    rpc_pair,
    rpc_server,
    shared_runtime,
)
from tests.metaquorum.security.certificates import Authority
from tests.metaquorum.security.openssl_client import OpensslClient
from tests.nodes import PATIENCE_S, needs_ipv6


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.files("node")


async def tcp_pair(host: str = HOST) -> tuple[Connection, Connection]:
    """Yield the dialer's end and the acceptor's end of a connection."""
    network = shared_runtime().network
    listener = await network.listen(host, 0)
    dialed = await network.connect(*listener.address)
    accepted = await listener.accept()
    listener.close()
    return dialed, accepted


@asynccontextmanager
async def tls_pair(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = HOST
) -> AsyncIterator[tuple[TlsConnection, TlsConnection]]:
    dialed, accepted = await tcp_pair(host)
    ours = TlsConnection(dialed, client, server_hostname=host)
    theirs = TlsConnection(accepted, server)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.handshake)
            nursery.start_soon(theirs.handshake)
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


async def read_all(connection: Connection, buffer_bytes: int = 10_000) -> bytes:
    data, buffer = bytearray(), bytearray(buffer_bytes)
    while count := await connection.receive_into(buffer):
        data += buffer[:count]
    return bytes(data)


async def pump_all(connection: Connection, buffer_bytes: int = 10_000) -> bytes:
    """Read everything like `read_all`, by steps of `pump`."""
    data, buffer = bytearray(), bytearray(buffer_bytes)

    def step() -> bool:
        count = connection.receive_nowait(buffer)
        data.extend(buffer[: max(count, 0)])
        return count != 0

    await connection.pump(step)
    return bytes(data)


async def send_and_close(connection: Connection, data: bytes) -> None:
    await connection.send(data)
    connection.close()


Reader = Callable[[Connection, int], Awaitable[bytes]]
PATTERN = bytes(range(256)) * 12_000  # about 3 MB


@pytest.mark.parametrize("read", [read_all, pump_all])
@pytest.mark.parametrize("buffer_bytes", [1000, 1 << 14, 1 << 20])
@pytest.mark.parametrize("size", [1, 1000, 1 << 14, SEND_BYTES + 1, len(PATTERN)])
@in_trio
async def test_what_is_sent_arrives(
    size: int, buffer_bytes: int, read: Reader, files: TlsFiles
) -> None:
    contexts = server_context(files, client_certificates="required"), client_context(files)
    async with tls_pair(*contexts) as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(send_and_close, ours, PATTERN[:size])
        assert await read(theirs, buffer_bytes) == PATTERN[:size]
        assert theirs.ssl.getpeercert()


@in_trio
async def test_a_cancelled_receive_loses_no_byte(files: TlsFiles) -> None:
    async with tls_pair(server_context(files), client_context(files)) as (accepted, dialed):
        await dialed.send(PATTERN[:1000])
        first = bytearray(10)
        assert await accepted.receive_into(first) == 10  # the others are decrypted, and wait
        with trio.move_on_after(0) as cancelled:
            await accepted.receive_into(bytearray(10))
        assert cancelled.cancelled_caught
        await send_and_close(dialed, b"")
        assert bytes(first) + await read_all(accepted) == PATTERN[:1000]


@in_trio
async def test_a_step_is_called_soon_whether_or_not_anything_comes(files: TlsFiles) -> None:
    async with tls_pair(server_context(files), client_context(files)) as (ours, theirs):
        seen: list[str] = []

        def soon() -> bool:
            seen.append("soon")
            return len(seen) < 4

        def step() -> bool:
            while theirs.receive_nowait(bytearray(10)) > 0:
                seen.append("bytes")
                theirs.call_soon(soon)
            return True

        theirs.call_soon(soon)  # without a pump this has no effect
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.pump, step)
            await ours.send(b"one")
            while seen != ["bytes", "soon"]:
                await trio.sleep(0.001)
            theirs.call_soon(soon)
            while len(seen) < 3:
                await trio.sleep(0.001)
            theirs.call_soon(soon)  # the step ends the pump
        assert seen == ["bytes", "soon", "soon", "soon"]


@in_trio
async def test_both_directions_flow_at_once(files: TlsFiles) -> None:
    contexts = server_context(files), client_context(files)
    async with tls_pair(*contexts) as (ours, theirs):
        got: dict[str, bytes] = {}

        async def receive(name: str, connection: Connection) -> None:
            data, buffer = bytearray(), bytearray(50_000)
            while len(data) < len(PATTERN):
                data += buffer[: await connection.receive_into(buffer)]
            got[name] = bytes(data)

        async with trio.open_nursery() as nursery:
            for name, connection in (("ours", ours), ("theirs", theirs)):
                nursery.start_soon(connection.send, PATTERN)
                nursery.start_soon(receive, name, connection)
        assert got == {"ours": PATTERN, "theirs": PATTERN}


@in_trio
async def test_a_step_is_called_for_what_was_decrypted_and_not_read(files: TlsFiles) -> None:
    """One record contains many requests; no further byte arrives from the network."""
    async with tls_pair(server_context(files), client_context(files)) as (ours, theirs):
        await ours.send(b"0123456789" * 20)
        seen: list[bytes] = []
        buffer = bytearray(10)

        def step() -> bool:
            if (count := theirs.receive_nowait(buffer)) > 0:
                seen.append(bytes(buffer[:count]))
            return len(seen) % 3 != 0  # the task has to run now and then

        while len(seen) < 20:
            with trio.fail_after(PATIENCE_S):
                await theirs.pump(step) if len(seen) < 18 else await theirs.receive_into(buffer)
            if len(seen) >= 18:
                seen.append(bytes(buffer))
        assert seen == [b"0123456789"] * 20


@in_trio
async def test_what_could_not_be_sent_without_waiting_is_offered_again(files: TlsFiles) -> None:
    async with tls_pair(server_context(files), client_context(files)) as (ours, theirs):
        rest = memoryview(PATTERN * 3)
        received = bytearray()
        buffer = bytearray(100_000)
        partly = 0
        while rest or len(received) < 3 * len(PATTERN):
            if rest:
                taken = ours.send_nowait(rest)
                partly += taken < len(rest)
                rest = rest[taken:]
            received += buffer[: await theirs.receive_into(buffer)]
        assert partly > 3
        assert received == PATTERN * 3


@in_trio
async def test_send_goes_on_where_send_nowait_left_off(files: TlsFiles) -> None:
    async with tls_pair(server_context(files), client_context(files)) as (ours, theirs):
        data = PATTERN * 3
        taken = ours.send_nowait(data)
        assert 0 < taken < len(data)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_and_close, ours, data[taken:])
            assert await read_all(theirs) == data


@in_trio
async def test_a_part_of_a_file_is_sent(files: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(PATTERN)
    async with tls_pair(server_context(files), client_context(files)) as (ours, theirs):
        file = shared_runtime().disk.open(str(tmp_path / "segment"))

        async def send() -> None:
            assert theirs.send_file_nowait(file, 5, 100) == 0  # left to the task
            await theirs.send_file(file, 5, SEND_BYTES * 2 + 7)
            with pytest.raises(EOFError, match="ends at"):
                await theirs.send_file(file, len(PATTERN) - 3, 10)
            theirs.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            got = await read_all(ours)
        assert got == PATTERN[5 : SEND_BYTES * 2 + 12] + PATTERN[-3:]
        file.close()


@in_trio
async def test_an_end_is_an_end_with_and_without_a_word(files: TlsFiles) -> None:
    for say in (True, False):
        dialed, accepted = await tcp_pair()
        ours = TlsConnection(dialed, client_context(files), server_hostname=HOST)
        theirs = TlsConnection(accepted, server_context(files))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.handshake)
            nursery.start_soon(theirs.handshake)
        await ours.send(b"last words")
        (ours if say else dialed).close()
        assert await pump_all(theirs) == b"last words"
        assert theirs.receive_nowait(bytearray(1)) == 0
        theirs.close()
        with pytest.raises(trio.ClosedResourceError):
            theirs.receive_nowait(bytearray(1))
        with pytest.raises(trio.ClosedResourceError):
            await theirs.send(b"x")


async def fail_to_agree(
    server: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> tuple[str, str]:
    """Return the errors of the server and the client."""
    dialed, accepted = await tcp_pair()
    said: dict[str, str] = {"server": "", "client": ""}

    async def shake(name: str, connection: TlsConnection) -> None:
        try:
            await connection.handshake()
            await connection.receive_into(bytearray(1))
        except OSError as error:
            said[name] = str(error)
        finally:
            connection.close()

    async def speak_plainly(connection: Connection) -> None:
        try:
            await connection.send(b"\x00\x00\x00\x10 no TLS at all")
            await connection.receive_into(bytearray(100))
        except OSError:
            pass
        finally:
            connection.close()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            if server is None:
                nursery.start_soon(speak_plainly, accepted)
            else:
                nursery.start_soon(shake, "server", TlsConnection(accepted, server))
            if client is None:
                nursery.start_soon(speak_plainly, dialed)
            else:
                connection = TlsConnection(dialed, client, server_hostname=HOST)
                nursery.start_soon(shake, "client", connection)
    return said["server"], said["client"]


@in_trio
async def test_who_does_not_agree_says_why(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    stranger = replace(other.files("stranger"), authorities=files.authorities)
    required = server_context(files, client_certificates="required")

    _, client = await fail_to_agree(server_context(stranger), client_context(files))
    assert client == "TLS failed: the authority of the peer's certificate is not trusted"
    server, client = await fail_to_agree(required, client_context(stranger))
    assert server == "TLS failed: the authority of the peer's certificate is not trusted"
    assert "does not trust the authority of this node's certificate" in client

    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.load_verify_locations(authority.path)
    server, client = await fail_to_agree(required, anonymous)
    assert "the peer sent no certificate" in server
    assert "the peer requires a certificate of this node" in client

    elsewhere = server_context(authority.files("elsewhere", "elsewhere.example"))
    _, client = await fail_to_agree(elsewhere, client_context(files))
    assert "'127.0.0.1'" in client
    lenient = client_context(replace(files, verify_hostname=False))
    async with tls_pair(elsewhere, lenient):  # as configured
        pass

    server, _ = await fail_to_agree(server_context(files), None)
    assert "the peer does not use TLS" in server
    _, client = await fail_to_agree(None, client_context(files))
    assert "the peer does not use TLS" in client


@needs_ipv6
@in_trio
async def test_a_certificate_may_name_an_address_of_either_family(authority: Authority) -> None:
    files = authority.files("both", "::1", "127.0.0.1")
    for host in ("::1", "127.0.0.1"):
        async with tls_pair(server_context(files), client_context(files), host):
            pass
    other = authority.files("v6", "2001:db8::1")
    with pytest.raises(ExceptionGroup) as failed:
        async with tls_pair(server_context(other), client_context(files), "::1"):
            pass
    assert any("'::1'" in str(error) for error in failed.value.exceptions)


@in_trio
async def test_an_expired_certificate_of_the_other_side_is_named(
    authority: Authority, files: TlsFiles
) -> None:
    expired = authority.files("expired-peer", valid_days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.certificate, expired.key)
    server, client = await fail_to_agree(context, client_context(files))
    assert client == "TLS failed: the peer's certificate has expired"
    assert "this node's certificate has expired" in server


@in_trio
async def test_who_closes_in_the_middle_of_the_handshake_is_named(files: TlsFiles) -> None:
    dialed, accepted = await tcp_pair()
    await dialed.send(b"\x16\x03\x01")
    dialed.close()
    connection = TlsConnection(accepted, server_context(files))
    with pytest.raises(TlsError, match="closed the connection during"):
        await connection.handshake()
    connection.close()


def test_files_that_cannot_be_used_are_named_in_a_sentence(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    other = authority.files("second")
    text = tmp_path / "notes.txt"
    text.write_text("not a certificate\n")
    encrypted = tmp_path / "encrypted.key"
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    cases = [
        (
            replace(files, certificate="/nowhere.pem"),
            "cannot read the certificate file /nowhere.pem",
        ),
        (replace(files, key=str(tmp_path)), "cannot read the key file .*: Is a directory"),
        (replace(files, key=other.key), "does not match the certificate in"),
        (replace(files, certificate=files.key), r"contains no certificate in PEM form"),
        (replace(files, key=files.certificate), r"contains no private key in PEM form"),
        (replace(files, certificate=str(text)), r"notes.txt contains no certificate in PEM form"),
        (replace(files, key=str(encrypted)), "is encrypted"),
        (replace(files, authorities=str(text)), "contains no certificates of authorities"),
        (
            replace(files, authorities="/nowhere.pem"),
            "cannot read the authorities file /nowhere.pem",
        ),
        (replace(files, authorities=None), "no file of trusted authorities"),
        (authority.files("expired", valid_days=-1), "has expired"),
    ]
    for wrong, words in cases:
        with pytest.raises(TlsFilesError, match=words):
            client_context(wrong)
        with pytest.raises(TlsFilesError, match=words):
            server_context(wrong, client_certificates="required")
    server_context(replace(files, authorities=None))  # without client certificates


def test_old_versions_are_not_spoken(files: TlsFiles) -> None:
    for context in (client_context(files), server_context(files)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@in_trio
async def test_python_s_own_client_is_served(version: ssl.TLSVersion, files: TlsFiles) -> None:
    network = shared_runtime().network
    listener = await network.listen(HOST, 0)
    context = client_context(files)
    context.minimum_version = context.maximum_version = version

    def client() -> bytes:
        with (
            socket.create_connection(listener.address) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as sock,
        ):
            sock.sendall(PATTERN)
            data = b""
            while len(data) < len(PATTERN):
                data += sock.recv(1 << 16)
            assert sock.unwrap() is not None
            return data

    async def serve() -> None:
        connection = TlsConnection(await listener.accept(), server_context(files))
        await connection.handshake()
        assert connection.ssl.version() == version.name.replace("v1_", "v1.")
        data, buffer = bytearray(), bytearray(1 << 16)
        while len(data) < len(PATTERN):
            data += buffer[: await connection.receive_into(buffer)]
        await connection.send(data)
        assert await connection.receive_into(buffer) == 0
        connection.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        assert await trio.to_thread.run_sync(client) == PATTERN
    listener.close()


def test_any_split_on_the_way_is_put_together(files: TlsFiles) -> None:
    async def serve(runtime: Runtime) -> None:
        listener = await runtime.network.listen("", 9093)
        connection = TlsConnection(await listener.accept(), server_context(files))
        await connection.handshake()
        data = await pump_all(connection, 3000)
        assert data == PATTERN[:300_000]

    async def dial(runtime: Runtime) -> None:
        context = client_context(replace(files, verify_hostname=False))
        plain = await runtime.network.connect("server", 9093)
        connection = TlsConnection(plain, context, server_hostname="server")
        await connection.handshake()
        await send_and_close(connection, PATTERN[:300_000])

    async def scenario(world: World) -> None:
        world.internet.default.split = 1.0
        world.internet.default.capacity_bytes = 5000
        server = world.machine("server").start(serve)
        client = world.machine("client").start(dial)
        for fate in (server, client):
            await fate.done.wait()
            assert fate.error is None, fate.error

    world = World(1)
    world.run(scenario)
    assert not world.violations


class Tampered:
    """A connection that changes one received byte."""

    def __init__(self, inner: Connection, position: int, flip: int) -> None:
        self.peer = inner.peer
        self.pump = inner.pump
        self.send = inner.send
        self.send_nowait = inner.send_nowait
        self.send_file = inner.send_file
        self.send_file_nowait = inner.send_file_nowait
        self.receive_into = inner.receive_into
        self.is_ended = inner.is_ended
        self.close = inner.close
        self._inner = inner
        self._before = position
        self._flip = flip

    def receive_nowait(self, buffer: bytearray | memoryview) -> int:
        count = self._inner.receive_nowait(buffer)
        if 0 <= self._before < count:
            buffer[self._before] ^= self._flip
        if count > 0:
            self._before -= count
        return count


@pytest.mark.slow
@examples(60)
@given(position=st.integers(0, 24_000), flip=st.integers(1, 255))
def test_changed_bytes_are_never_delivered(position: int, flip: int, files: TlsFiles) -> None:
    delivered = bytearray()

    async def dial(connection: TlsConnection) -> None:
        try:
            await connection.handshake()
            await connection.send(PATTERN[:20_000])
            await connection.receive_into(bytearray(1))
        except OSError:
            pass
        finally:
            connection.close()

    async def main() -> None:
        dialed, accepted = await tcp_pair()
        theirs = TlsConnection(Tampered(accepted, position, flip), server_context(files))
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                client = TlsConnection(dialed, client_context(files), server_hostname=HOST)
                nursery.start_soon(dial, client)
                # The changed size of a record may exceed the bytes that follow.
                with trio.move_on_after(0.2):
                    try:
                        await theirs.handshake()
                        buffer = bytearray(50_000)
                        while len(delivered) < 20_000:
                            delivered.extend(buffer[: await theirs.receive_into(buffer)])
                    except OSError as error:
                        assert "TLS failed" in str(error)  # noqa: PT017
                theirs.close()

    trio.run(main)
    assert PATTERN.startswith(delivered)


@pytest.fixture(scope="module")
def nodes(authority: Authority) -> Callable[[int], TlsFiles]:
    return lambda node_id: authority.files(f"node-{node_id}")


async def echo(caller: Caller, method: str, payload: bytes) -> bytes:
    return payload


@in_trio
async def test_nodes_call_each_other_inside_tls(nodes: Callable[[int], TlsFiles]) -> None:
    controller, worker = endpoint(1, tls=nodes(1)), endpoint(7, tls=nodes(7))
    async with rpc_pair(echo, server=controller, client=worker) as client:
        for size in (0, 100, 1 << 20):
            assert await client.call("echo", bytes(size), PATIENCE_S) == bytes(size)


@in_trio
async def test_nodes_with_and_without_tls_do_not_go_together(
    nodes: Callable[[int], TlsFiles], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def dial(controller: Endpoint, worker: Endpoint) -> str:
        async with rpc_server(echo, server=controller) as address:
            with pytest.raises((OSError, HandshakeError)) as caught:
                await worker.dial(StreamKind.RPC, 1, *address)
            return str(caught.value)

    plain, sealed = endpoint(1), endpoint(1, tls=nodes(1))
    await dial(plain, endpoint(7, tls=nodes(7)))
    assert "the peer uses TLS, but this node expects plain text" in caplog.text
    await dial(sealed, endpoint(7))
    assert "the peer does not use TLS" in caplog.text
    stranger = replace(Authority(tmp_path, "other").files("x"), authorities=nodes(7).authorities)
    await dial(sealed, endpoint(7, tls=stranger))
    assert "the authority of the peer's certificate is not trusted" in caplog.text
    said = await dial(sealed, endpoint(7, tls=nodes(7), secret=b"quite another secret"))
    assert said == "the peer has another cluster secret"


@in_trio
async def test_replaced_files_are_taken_up_by_new_streams(tmp_path: Path) -> None:
    """For both ends; the previous files stay in use until both files of a pair are replaced."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    both = tmp_path / "both.pem"
    both.write_text(Path(old.path).read_text() + Path(new.path).read_text())
    files, replacing = old.files("node"), new.files("node")
    controller, worker = (endpoint(n, tls=replace(files, authorities=str(both))) for n in (1, 7))
    judge = endpoint(8, tls=replace(replacing, authorities=new.path))  # trusts the new authority

    def replace_file(of: str, by: str) -> None:
        Path(by).rename(of)
        for context in (*controller.contexts, *worker.contexts):
            context.reload()

    async with rpc_server(echo, server=controller) as address:

        async def is_believed() -> bool:
            try:
                (await judge.dial(StreamKind.RPC, 1, *address)).close()
            except OSError:
                return False
            (await worker.dial(StreamKind.RPC, 1, *address)).close()
            return True

        assert not await is_believed()
        replace_file(files.key, replacing.key)
        assert not await is_believed()
        replace_file(files.certificate, replacing.certificate)
        assert await is_believed()
    async with rpc_server(echo, server=judge) as address:
        with pytest.raises(
            HandshakeError, match="node"
        ):  # wrong node id, but a trusted certificate
            await worker.dial(StreamKind.RPC, 1, *address)


# Peers that try to block the event loop


async def shaken(client: OpensslClient, files: TlsFiles) -> tuple[Connection, TlsConnection]:
    """Return the client's raw connection and the server's TLS connection."""
    dialed, accepted = await tcp_pair()
    theirs = TlsConnection(accepted, server_context(files))

    async def shake() -> None:
        buffer = bytearray(1 << 16)
        data = client.shake(b"")
        while data:
            await dialed.send(data)
            count = await dialed.receive_into(buffer)
            data = client.shake(bytes(buffer[:count]))
            if data:  # empty after the last flight
                await dialed.send(data)
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shake)
        nursery.start_soon(theirs.handshake)
    return dialed, theirs


@in_trio
async def test_keys_may_change_now_and_again(files: TlsFiles) -> None:
    client = OpensslClient()
    dialed, theirs = await shaken(client, files)
    buffer = bytearray(1 << 16)
    await dialed.send(client.new_keys(20))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.receive_into, bytearray(1 << 16))
        assert await dialed.receive_into(buffer) > 20 * 20
        nursery.cancel_scope.cancel()
    theirs.close()
    dialed.close()


@in_trio
async def test_keys_that_change_all_the_time_end_the_connection_before_long(
    files: TlsFiles,
) -> None:
    """A receive of 64 KiB could contain 2,400 key updates: 90 ms of work and unlimited answers."""
    client = OpensslClient()
    dialed, theirs = await shaken(client, files)
    await dialed.send(client.new_keys(2400))
    await trio.sleep(0.01)  # lets all bytes arrive together; the test does not depend on it
    with pytest.raises(TlsError, match="too many key updates"):
        await theirs.receive_into(bytearray(1 << 16))
    theirs.close()
    answered = 0
    with suppress(ConnectionError):  # the server has not read all bytes
        while count := await dialed.receive_into(bytearray(1 << 16)):
            answered += count
    assert answered < 2 * MAX_ANSWER_BYTES  # without the limit: about 60 KB
    dialed.close()


@in_trio
async def test_handshakes_take_turns_with_everybody_else(files: TlsFiles) -> None:
    """With many handshakes at once, each iteration of the loop runs one step of one of them."""
    context = server_context(files)
    steps = most = 0

    class Counted(ssl.SSLObject):
        def do_handshake(self, *arguments: object) -> None:
            nonlocal steps
            steps += 1
            super().do_handshake()

    context.sslobject_class = Counted
    stop = False

    async def others() -> None:
        nonlocal steps, most
        while not stop:
            steps = 0
            await trio.lowlevel.checkpoint()
            most = max(most, steps)

    async def shake() -> None:
        dialed, accepted = await tcp_pair()
        ours = TlsConnection(dialed, client_context(files), server_hostname=HOST)
        theirs = TlsConnection(accepted, context)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.handshake)
            nursery.start_soon(theirs.handshake)
        ours.close()
        theirs.close()

    async with trio.open_nursery() as outer:
        outer.start_soon(others)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(shake)
        stop = True
    assert 1 <= most <= 2  # since the order within an iteration is arbitrary


@examples(100)
@given(
    st.lists(st.integers(0, 300), max_size=100),
    st.lists(st.integers(1, 500), max_size=300),
    st.integers(0, 300),
)
def test_records_are_taken_in_part_and_then_whole_but_few_at_once(
    sizes: list[int], pieces: list[int], whole_from: int
) -> None:
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes)
    begins = list(accumulate((size + 5 for size in sizes), initial=0))
    records, at, came = _Records(), 0, 0
    for number, piece in enumerate((*pieces, len(stream))):
        came = min(came + piece, len(stream))
        whole = number >= whole_from
        while True:
            taken = records.take(memoryview(stream)[at:came], whole=whole)
            assert sum(at <= begin < at + taken for begin in begins) <= RECORDS_AT_ONCE
            at += taken
            if not records.has_more:
                break
        assert at == came or at in begins
        ends = [end for begin, end in pairwise(begins) if begin >= at]
        if whole:
            assert not ends or came < ends[0]
        else:
            assert came - at < RECORD_HEADER_BYTES
    assert at == len(stream)


def test_what_is_no_record_is_not_waited_for() -> None:
    records, size = _Records(), MAX_RECORD_BYTES
    for claimed, taken in ((size - RECORD_HEADER_BYTES, 0), (size, 9)):
        start = b"\x17\x03\x03" + claimed.to_bytes(2, "big") + bytes(4)
        assert records.take(memoryview(start), whole=True) == taken
