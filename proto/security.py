"""How programs of a cluster speak to each other: in plain text, or each proving by a certificate that it belongs to it."""

from typing import Any, Protocol

import grpc
import grpc.aio

from twostep.core.certificates import CertificateFiles, Pem, TlsConfig, files_of
from twostep.core.errors import Unauthorized
from twostep.proto.renewed_channel import renewed_channel
from twostep.proto.rpc import CHANNEL_OPTIONS, Channel, Context, open_channel


class Security(Protocol):
    """What both ends of every connection agree on."""

    def open_channel(self, address: str) -> Channel:
        """Return a channel to `address` (host:port)."""

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Let the server listen at `address`. Returns the port. Raises RuntimeError when it is taken."""

    def admit(self, context: Context) -> None:
        """Raises Unauthorized for a caller that does not belong here."""


class PlainText:
    """Anybody may read, and call."""

    def open_channel(self, address: str) -> Channel:
        return open_channel(address)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        return server.add_insecure_port(address)

    def admit(self, context: Context) -> None:
        pass


class MutualTls:
    """Certificates are checked by authority and by the cluster's name, on both sides; renewed ones count at once."""

    def __init__(self, config: TlsConfig) -> None:
        self._files = files_of(config)
        self._name = config.name

    def open_channel(self, address: str) -> Channel:
        return renewed_channel(lambda pem: self._open(address, pem), self._files)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        return server.add_secure_port(address, server_credentials(self._files, wants_certificate=True))

    def admit(self, context: Context) -> None:
        names = context.auth_context().get("x509_subject_alternative_name", ())
        if self._name.encode() not in names:
            raise Unauthorized(f"a certificate for {self._name} is needed to call this program")

    def _open(self, address: str, pem: Pem) -> Channel:
        credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
        # Programs are reached by the address of their pod, which no certificate can know before there is a pod.
        options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", self._name)]
        return grpc.aio.secure_channel(address, credentials, options=options)


def security_of(config: TlsConfig | None) -> Security:
    """Return mutual TLS where it is configured. Raises ConfigError when its files cannot be used."""
    return MutualTls(config) if config else PlainText()


def server_credentials(files: CertificateFiles, *, wants_certificate: bool) -> grpc.ServerCredentials:
    """Return credentials that show, at each handshake, what the files hold then."""

    def configuration(pem: Pem) -> Any:
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca or None)

    told = files.current()

    def fetch() -> Any:
        nonlocal told
        if files.current() is told:
            return None
        told = files.current()
        return configuration(told)

    return grpc.dynamic_ssl_server_credentials(configuration(told), fetch, wants_certificate)
