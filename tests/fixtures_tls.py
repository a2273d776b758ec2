"""Certificates for tests of TLS: one CA, and servers that it signed well, for another name, or for a time that is over.

Made once for each test worker with `openssl`, in a directory of their own.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_SERVERS: Final = {
    "good": ("IP:127.0.0.1,DNS:127.1", ("-days", "2")),
    "other": ("DNS:other.example", ("-days", "2")),
    "expired": ("IP:127.0.0.1,DNS:127.1", ("-days", "-1")),
}


@dataclass(frozen=True)
class TlsFiles:
    """Where they are: `ca`, and a certificate and key for each of `good`, `other` and `expired`."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.crt")

    def certificate(self, name: str) -> str:
        return str(self.folder / f"{name}.crt")

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """The certificates."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    uses = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=ca", *uses, "-keyout", "ca.key", "-out", "ca.crt")
    for name, (names, dates) in _SERVERS.items():
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signs = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", *signs, *dates, "-out", f"{name}.crt")
    return TlsFiles(folder)
