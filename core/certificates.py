"""Certificates in files that somebody else renews: read anew when they change, and only taken when they fit together."""

import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twostep.core.certificate_end import ends_at
from twostep.core.clock import Clock
from twostep.core.config import config
from twostep.core.errors import ConfigError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often files are looked at, at most."""


@config
class TlsConfig:
    """Mutual TLS between the programs of one cluster: each shows a certificate, and wants to see one of the same cluster."""

    certificate: Path
    """This program's certificate in PEM, followed by those between it and the authority."""
    key: Path
    """Its private key in PEM, without a passphrase."""
    ca: Path
    """The authorities, in PEM, one of which has to have signed the other side's certificate."""
    name: str
    """The DNS name that every certificate of this cluster carries; whoever shows another one is refused."""


@config
class FrontTlsConfig:
    """TLS at the front doors, towards clients."""

    certificate: Path
    """The certificate in PEM, followed by those between it and an authority that clients know."""
    key: Path
    """Its private key in PEM, without a passphrase."""


@dataclass(frozen=True, slots=True)
class Pem:
    """What the files hold. `ca` is empty where the other side needs no certificate."""

    certificate: bytes
    key: bytes
    ca: bytes


class CertificateFiles:
    """`current` may be asked often, from any thread. Raises ConfigError when the files cannot be used at the start."""

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None, *, clock: Clock = time.monotonic) -> None:
        self._certificate, self._key, self._ca = certificate, key, ca
        self._clock = clock
        self._looked_at = clock()
        self._stamp = self._read_stamp()
        self._pem = self._read()

    def current(self) -> Pem:
        """Return what the files hold, or held last before somebody wrote something into them that cannot be used."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._look()
        return self._pem

    def ends_at(self) -> float:
        """Return the Unix time at which the certificate that is shown now ends."""
        return ends_at(self.current().certificate)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Let `context` show the certificate of the files from the next handshake on."""
        context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)

    def _look(self) -> None:
        try:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._pem = self._read()
                self._stamp = stamp
                log.info("certificate read anew", extra={"file": str(self._certificate)})
        except ConfigError as error:
            # Perhaps only one of the files has been renewed yet.
            log.warning("the renewed certificate cannot be used yet", extra={"reason": str(error)})

    @property
    def _paths(self) -> Sequence[Path]:
        return [path for path in (self._certificate, self._key, self._ca) if path]

    def _read_stamp(self) -> list[tuple[int, int, int]]:
        try:
            stats = [path.stat() for path in self._paths]
        except OSError as cause:
            raise ConfigError(f"tls: {cause.filename} cannot be read: {cause.strerror}") from cause
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]

    def _read(self) -> Pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
            if self._ca:
                context.load_verify_locations(self._ca)
            certificate, key, ca = (path.read_bytes() if path else b"" for path in (self._certificate, self._key, self._ca))
        except (OSError, ValueError) as cause:
            names = ", ".join(map(str, self._paths))
            raise ConfigError(f"tls: {names}: not a PEM certificate with its key and authorities: {cause}") from cause
        return Pem(certificate, key, ca)


def files_of(config: TlsConfig) -> CertificateFiles:
    """Raises ConfigError when the files cannot be used."""
    return CertificateFiles(config.certificate, config.key, config.ca)


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, which nobody could enter")
