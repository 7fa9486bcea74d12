"""TLS of a listener, and of workers to each other.

The key's and the certificate's file are one, as Kafka's PEM keystores are, so that they cannot be
torn apart when they are replaced.
"""

import ssl
from dataclasses import field

from dataplane.network.principal_mapping import PrincipalMapping
from metaquorum.rpc.methods import ANONYMOUS
from metaquorum.security.distinguished_name import subject_of
from metaquorum.security.tls_context import (
    ClientCertificates,
    ReloadedContext,
    TlsFiles,
    client_context,
)
from metaquorum.security.tls_context import server_context as context_of_server
from wire.primitives.frozen import frozen


@frozen
class TlsSettings:
    """What a listener's configs say."""

    files: TlsFiles
    client_certificates: ClientCertificates
    principal_rules: PrincipalMapping = field(compare=False)


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
