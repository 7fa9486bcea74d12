"""Files of keys and certificates, the contexts of TLS made of them, and contexts that follow them.

Whoever renews a certificate replaces the files. New connections take what has come; those there are
go on. Files that cannot be used leave what was in force, with a line in the log; but only at the
second look, as a key and its certificate may be replaced one after the other.
"""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from metaquorum.runtime import Clock, sleep
from wire.primitives.frozen import frozen

log = logging.getLogger(__name__)

RELOAD_S: Final = 5.0

ClientCertificates: TypeAlias = Literal["none", "requested", "required"]


class TlsFilesError(Exception):
    """The files for TLS cannot be used; one sentence that names the file."""


@frozen
class TlsFiles:
    """Paths of PEM files."""

    certificate: str  # this node's, and those between it and an authority
    key: str
    authorities: str | None = None  # whose certificates are believed
    verify_hostname: bool = True  # a server's certificate has to name the host that was dialed


def server_context(
    files: TlsFiles, *, client_certificates: ClientCertificates = "none"
) -> ssl.SSLContext:
    """For those who are dialed. TlsFilesError."""
    context = _own_context(ssl.PROTOCOL_TLS_SERVER, files)
    if client_certificates != "none":
        if files.authorities is None:
            raise TlsFilesError(
                "certificates of clients cannot be checked: no file of authorities is given"
            )
        _load_authorities(context, files.authorities)
        context.verify_mode = (
            ssl.CERT_REQUIRED if client_certificates == "required" else ssl.CERT_OPTIONAL
        )
    context.num_tickets = 0  # nobody resumes, and a ticket to one who has gone breaks his stream
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For those who dial and have a certificate to show. TlsFilesError."""
    context = _own_context(ssl.PROTOCOL_TLS_CLIENT, files)
    if files.authorities is None:
        raise TlsFilesError(
            "certificates of servers cannot be checked: no file of authorities is given"
        )
    _load_authorities(context, files.authorities)
    context.check_hostname = files.verify_hostname
    return context


def _own_context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    """With this node's own certificate and key, which fit and are in date. TlsFilesError."""
    for what, path in (("certificate", files.certificate), ("key", files.key)):
        _check_readable(what, path)
    context = _context(protocol)
    try:
        # Without a password: OpenSSL would ask for one on the terminal, and the node would hang.
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        raise TlsFilesError(_load_failure(error, files)) from None
    except _EncryptedKeyError:
        raise TlsFilesError(
            f"the key in {files.key} is encrypted: give one that is not, which only this user may"
            " read"
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
        raise TlsFilesError(f"the {what} file {path} cannot be read: {error.strerror}") from None


def _load_failure(error: ssl.SSLError, files: TlsFiles) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {files.key} is not that of the certificate in {files.certificate}"
    for what, path in (("certificate", files.certificate), ("private key", files.key)):
        marks = (b"-----BEGIN CERTIFICATE",) if what == "certificate" else (b"PRIVATE KEY-----",)
        with open(path, "rb") as file:
            data = file.read()
        if not any(mark in data for mark in marks):
            return f"{path} holds no {what} in PEM form"
    return (
        f"the certificate in {files.certificate} and the key in {files.key} cannot be used:"
        f" {error.reason or error}"
    )


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _check_readable("authorities", path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise TlsFilesError(f"{path} holds no certificates of authorities in PEM form") from None


def _check_dates(files: TlsFiles) -> None:
    """TlsFilesError when the node's own certificate is not valid today.

    It is shown to a client that believes in nothing but this very certificate.
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
                return  # unusual, but whoever it is shown to judges that
            except ssl.SSLError:
                return


_EXPIRED: Final = 10  # OpenSSL's X509_V_ERR_...
_NOT_YET_VALID: Final = 9
_OUT_OF_DATE: Final = {
    _EXPIRED: "has expired: put a new one in its place",
    _NOT_YET_VALID: "is not valid yet: is the clock right?",
}


class ReloadedContext:
    """`current` is made of the files as they were when they were looked at last."""

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        """TlsFilesError."""
        self._paths = {path for path in (files.certificate, files.key, files.authorities) if path}
        self._make = make
        self._seen = self._versions()
        self._refused: dict[str, _Version | None] = {}
        self.current = make()

    def reload(self) -> None:
        """What was replaced is in force; or it is of no use, and said so once."""
        versions = self._versions()
        if versions == self._seen:
            return
        try:
            self.current = self._make()
        except TlsFilesError as error:
            if versions == self._refused:
                self._seen = versions
                log.error("TLS goes on with what was there: %s", error)
            self._refused = versions
        else:
            self._seen = versions
            log.info("TLS: new contents of %s are in force", ", ".join(sorted(self._paths)))

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
    while contexts:
        await sleep(clock, RELOAD_S)
        for context in contexts:
            context.reload()
