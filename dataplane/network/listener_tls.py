"""TLS of a listener, and of connections between workers.

One PEM file holds both the key and the certificate, as in Kafka's PEM keystores, so that replacing
the file cannot leave a key without its certificate.
"""

import ssl
from dataclasses import field

from metaquorum.dataplane.network.principal_mapping import PrincipalMapping
from metaquorum.quorum.rpc.methods import ANONYMOUS
from metaquorum.security.distinguished_name import subject_of
from metaquorum.security.tls_context import (
    ClientCertificates,
    ReloadedContext,
    TlsFiles,
    client_context,
)
from metaquorum.security.tls_context import server_context as context_of_server
from metaquorum.wire.primitives.frozen import frozen


@frozen
class TlsSettings:
    """TLS settings of one listener, from its configs."""

    files: TlsFiles
    client_certificates: ClientCertificates
    principal_rules: PrincipalMapping = field(compare=False)


class ListenerTls:
    """TLS context of a listener's connections, reloaded when its files change."""

    def __init__(self, settings: TlsSettings) -> None:
        """Load the TLS context. Raises TlsFilesError if a file is unreadable or invalid."""
        self._rules = settings.principal_rules
        self.context = ReloadedContext(
            settings.files,
            lambda: context_of_server(
                settings.files, client_certificates=settings.client_certificates
            ),
        )

    def principal_of(self, connection: ssl.SSLObject) -> str:
        """Return the principal of a client after the TLS handshake.

        A client without a certificate is User:ANONYMOUS. Raises CertificateError if the subject of
        the certificate cannot be read.
        """
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        return f"User:{self._rules.name_of(subject_of(certificate))}"


def context_for_dialing(files: TlsFiles) -> ReloadedContext:
    """Return the TLS context for connections to other nodes.

    Raises TlsFilesError if a file is unreadable or invalid.
    """
    return ReloadedContext(files, lambda: client_context(files))
