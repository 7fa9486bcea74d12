"""TLS contexts from files of keys and certificates, reloaded when the files change.

To renew a certificate, replace the files: new connections use the new ones, and open connections
continue. If the new files cannot be used, the previous context stays in use and an error is logged;
only at the second check, since a key and its certificate may be replaced one after the other.
"""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from metaquorum.runtime import Clock, sleep
from metaquorum.wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

RELOAD_S: Final = 5.0

ClientCertificates: TypeAlias = Literal["none", "requested", "required"]


class TlsFilesError(Exception):
    """Raised if TLS files cannot be used; the message names the file."""


@frozen
class TlsFiles:
    """Paths of PEM files."""

    certificate: str  # certificate of this node, followed by intermediate certificates
    key: str
    authorities: str | None = None  # trusted authorities
    verify_hostname: bool = True  # whether a server's certificate must contain the dialed host


def server_context(
    files: TlsFiles, *, client_certificates: ClientCertificates = "none"
) -> ssl.SSLContext:
    """Return a context for accepted connections. Blocking: reads the files.

    Raises TlsFilesError if a file cannot be used.
    """
    context = _own_context(ssl.PROTOCOL_TLS_SERVER, files)
    if client_certificates != "none":
        if files.authorities is None:
            raise TlsFilesError(
                "client certificates cannot be checked: no file of trusted authorities is"
                " configured"
            )
        _load_authorities(context, files.authorities)
        context.verify_mode = (
            ssl.CERT_REQUIRED if client_certificates == "required" else ssl.CERT_OPTIONAL
        )
    context.num_tickets = (
        0  # no client resumes sessions, and a ticket breaks the stream of a client that has closed
    )
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for dialed connections with a client certificate. Blocking: reads files.

    Raises TlsFilesError if a file cannot be used.
    """
    context = _own_context(ssl.PROTOCOL_TLS_CLIENT, files)
    if files.authorities is None:
        raise TlsFilesError(
            "server certificates cannot be checked: no file of trusted authorities is configured"
        )
    _load_authorities(context, files.authorities)
    context.check_hostname = files.verify_hostname
    return context


def _own_context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    """Return a context with the certificate and key of this node.

    Raises TlsFilesError if they cannot be read, do not match, or are not valid today.
    """
    for what, path in (("certificate", files.certificate), ("key", files.key)):
        _check_readable(what, path)
    context = _context(protocol)
    try:
        # Without this callback OpenSSL would prompt on the terminal, and the node would hang.
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        raise TlsFilesError(_load_failure(error, files)) from None
    except _EncryptedKeyError:
        raise TlsFilesError(
            f"the key in {files.key} is encrypted: configure an unencrypted key that only this user"
            " may read"
        ) from None
    _check_dates(files)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKeyError


def _check_readable(what: str, path: str) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsFilesError(f"cannot read the {what} file {path}: {error.strerror}") from None


def _load_failure(error: ssl.SSLError, files: TlsFiles) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {files.key} does not match the certificate in {files.certificate}"
    for what, path in (("certificate", files.certificate), ("private key", files.key)):
        marks = (b"-----BEGIN CERTIFICATE",) if what == "certificate" else (b"PRIVATE KEY-----",)
        with open(path, "rb") as file:
            data = file.read()
        if not any(mark in data for mark in marks):
            return f"{path} contains no {what} in PEM format"
    return (
        f"the certificate in {files.certificate} and the key in {files.key} cannot be used:"
        f" {error.reason or error}"
    )


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _check_readable("authorities", path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise TlsFilesError(
            f"{path} contains no certificates of authorities in PEM format"
        ) from None


def _check_dates(files: TlsFiles) -> None:
    """Raise TlsFilesError if the certificate of this node is not valid today.

    Runs a handshake in memory with a client that trusts this certificate only.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    client = _context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cafile=files.certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(back, there),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                if (words := _OUT_OF_DATE.get(error.verify_code)) is not None:
                    raise TlsFilesError(f"the certificate in {files.certificate} {words}") from None
                return  # unusual; the peers decide whether they accept the certificate
            except ssl.SSLError:
                return


_EXPIRED: Final = 10  # OpenSSL's X509_V_ERR_...
_NOT_YET_VALID: Final = 9
_OUT_OF_DATE: Final = {
    _EXPIRED: "has expired: replace it",
    _NOT_YET_VALID: "is not valid yet: check the clock of this machine",
}


class ReloadedContext:
    """TLS context that follows its files. `current`: context of the last usable files."""

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        """Create the first context. Raises TlsFilesError if a file cannot be used."""
        self._paths = {path for path in (files.certificate, files.key, files.authorities) if path}
        self._make = make
        self._seen = self._versions()
        self._refused: dict[str, _Version | None] = {}
        self.current = make()

    def reload(self) -> None:
        """Reload changed files; if they cannot be used, log an error once and keep `current`."""
        versions = self._versions()
        if versions == self._seen:
            return
        try:
            self.current = self._make()
        except TlsFilesError as error:
            if versions == self._refused:
                self._seen = versions
                log.error("cannot reload TLS files: %s; the previous ones stay in use", error)
            self._refused = versions
        else:
            self._seen = versions
            log.info("reloaded TLS files %s", ", ".join(sorted(self._paths)))

    def _versions(self) -> "dict[str, _Version | None]":
        return {path: _version(path) for path in self._paths}


_Version: TypeAlias = tuple[int, int, int]


def _version(path: str) -> _Version | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


async def keep_reloading(clock: Clock, contexts: Sequence[ReloadedContext]) -> None:
    """Reload changed files of `contexts` every RELOAD_S seconds, until cancelled."""
    while contexts:
        await sleep(clock, RELOAD_S)
        for context in contexts:
            context.reload()
