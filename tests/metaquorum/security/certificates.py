"""Certificates for tests, created on demand."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from metaquorum.security.tls_context import TlsFiles


class Authority:
    """Authority that signs certificates and writes each to files of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._ca = trustme.CA()
        self.path = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def files(
        self,
        name: str,
        *hosts: str,
        valid_days: float = 30,
        verify_hostname: bool = True,
        common_name: str | None = None,
    ) -> TlsFiles:
        """Create a certificate for `hosts`, or for this machine; `valid_days` may be negative."""
        made = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=common_name,
            not_before=datetime.now(UTC) - timedelta(days=60),
            not_after=datetime.now(UTC) + timedelta(days=valid_days),
        )
        certificate, key = (
            str(self._folder / f"{self._name}-{name}.{kind}") for kind in ("pem", "key")
        )
        for number, blob in enumerate(made.cert_chain_pems):
            blob.write_to_path(certificate, append=number > 0)
        made.private_key_pem.write_to_path(key)
        return TlsFiles(certificate, key, self.path, verify_hostname)

    def store(self, name: str, *hosts: str, common_name: str | None = None) -> str:
        """Return the path of one file with key and certificate, like Kafka's PEM keystores."""
        files = self.files(name, *hosts, common_name=common_name)
        path = self._folder / f"{self._name}-{name}-store.pem"
        temporary = path.with_suffix(".new")
        temporary.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
        temporary.replace(path)
        return str(path)
