"""Certificates of a private authority, in files as a program reads them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from twostep.core.certificates import TlsConfig

CLUSTER = "twostep.prod"
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """Where one program's certificate lies, and whose signature it trusts."""

    certificate: Path
    key: Path
    ca: Path

    def tls(self, name: str = CLUSTER) -> TlsConfig:
        return TlsConfig(certificate=self.certificate, key=self.key, ca=self.ca, name=name)

    def tls_values(self, name: str = CLUSTER) -> dict[str, str]:
        return {"certificate": str(self.certificate), "key": str(self.key), "ca": str(self.ca), "name": name}

    def settings(self, name: str = CLUSTER) -> str:
        """Return the same as a value for --set tls=…"""
        return json.dumps(self.tls_values(name))


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()

    def issue(self, program: str, *names: str, not_after: datetime | None = None) -> Identity:
        """Write a certificate for `names`, by default the cluster's, in place of any that the program has."""
        folder = self._folder / program
        folder.mkdir(parents=True, exist_ok=True)
        leaf = self._ca.issue_cert(
            *(names or (CLUSTER,)), not_after=not_after, not_before=not_after and not_after - timedelta(7)
        )
        identity = Identity(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
        _replace(identity.certificate, b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        _replace(identity.key, leaf.private_key_pem.bytes())
        _replace(identity.ca, self._ca.cert_pem.bytes())
        return identity


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)
