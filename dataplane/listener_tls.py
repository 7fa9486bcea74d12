"""TLS of a listener, and of workers to each other: contexts that follow their files.

Whoever renews a certificate replaces the files (the key's and the certificate's are one file, as
Kafka's PEM keystores are, so that they cannot be torn apart). New connections take what has come;
those there are go on. Files that cannot be used leave what was in force, with a line in the log.
"""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dataplane.principal_rules import PrincipalRules
from metaquorum.certificate_names import subject_of
from metaquorum.rpc.methods import ANONYMOUS
from metaquorum.runtime import Clock, sleep
from metaquorum.tls import ClientCertificates, TlsFiles, TlsFilesError, client_context
from metaquorum.tls import server_context as context_of_server

log = logging.getLogger(__name__)

RELOAD_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What a listener's configs say."""

    files: TlsFiles
    client_certificates: ClientCertificates
    principal_rules: PrincipalRules = field(compare=False)


class ReloadedContext:
    """`current` is made of the files as they were when they were looked at last."""

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        """TlsFilesError."""
        self._paths = {path for path in (files.certificate, files.key, files.authorities) if path}
        self._make = make
        self._seen = self._versions()
        self.current = make()

    def reload(self) -> None:
        """What was replaced is in force; or it is of no use, and said so once."""
        versions = self._versions()
        if versions == self._seen:
            return
        self._seen = versions
        try:
            self.current = self._make()
        except TlsFilesError as error:
            log.error("TLS goes on with what was there: %s", error)
        else:
            log.info("TLS: new contents of %s are in force", ", ".join(sorted(self._paths)))

    def _versions(self) -> dict[str, tuple[int, int, int] | None]:
        return {path: _version(path) for path in self._paths}


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class ListenerTls:
    """What a listener's connections begin with."""

    def __init__(self, settings: TlsSettings) -> None:
        """TlsFilesError."""
        self._rules = settings.principal_rules
        self.context = ReloadedContext(
            settings.files,
            lambda: context_of_server(
                settings.files, client_certificates=settings.client_certificates
            ),
        )

    def principal_of(self, connection: ssl.SSLObject) -> str:
        """Of a client behind its handshake. CertificateError."""
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        return f"User:{self._rules.name_of(subject_of(certificate))}"


def context_for_dialing(files: TlsFiles) -> ReloadedContext:
    """TlsFilesError."""
    return ReloadedContext(files, lambda: client_context(files))


async def keep_reloading(clock: Clock, contexts: Sequence[ReloadedContext]) -> None:
    while contexts:
        await sleep(clock, RELOAD_S)
        for context in contexts:
            context.reload()
