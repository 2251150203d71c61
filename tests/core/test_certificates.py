"""Certificates in files: taken when they are whole, read anew when they change, kept when the new ones are no use."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from twostep.core.certificate_end import ends_at
from twostep.core.certificates import LOOK_S, CertificateFiles
from twostep.core.errors import ConfigError
from twostep.tests.certificates import Authority, Identity


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def files_of(identity: Identity, clock: Clock) -> CertificateFiles:
    return CertificateFiles(identity.certificate, identity.key, identity.ca, clock=clock)


def test_a_renewed_certificate_is_read_at_the_next_look_and_not_before(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), Clock()
    files = files_of(authority.issue("p"), clock)
    first = files.current()
    authority.issue("p")
    assert files.current() is first
    clock.now += LOOK_S
    second = files.current()
    assert second.certificate != first.certificate
    clock.now += LOOK_S
    assert files.current() is second


@pytest.mark.parametrize("harm", ["the key of another certificate", "half a certificate", "nothing at all"])
def test_what_cannot_be_used_is_not_taken_until_it_can(tmp_path: Path, harm: str) -> None:
    authority, clock = Authority(tmp_path), Clock()
    identity = authority.issue("p")
    files = files_of(identity, clock)
    first = files.current()
    match harm:
        case "half a certificate":
            identity.certificate.write_bytes(first.certificate[:200])
        case "nothing at all":
            identity.key.unlink()
        case _:
            identity.key.write_bytes(authority.issue("other").key.read_bytes())
    clock.now += LOOK_S
    assert files.current() is first
    authority.issue("p")
    clock.now += LOOK_S
    assert files.current() is not first


@pytest.mark.parametrize("moment", [datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC), datetime(2071, 1, 1, tzinfo=UTC)])
def test_when_a_certificate_ends_is_read_from_the_one_that_is_shown(tmp_path: Path, moment: datetime) -> None:
    authority, clock = Authority(tmp_path), Clock()
    files = files_of(authority.issue("p", not_after=moment), clock)
    assert files.ends_at() == moment.timestamp()
    authority.issue("p", not_after=moment + timedelta(days=1))
    clock.now += LOOK_S
    assert files.ends_at() == moment.timestamp() + 86400


def test_what_holds_no_certificate_has_no_end() -> None:
    for text in (b"", b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----", b"\xff"):
        with pytest.raises(ValueError, match="no certificate"):
            ends_at(text)


def test_files_that_are_no_use_at_the_start_are_refused_by_name(tmp_path: Path) -> None:
    identity = Authority(tmp_path).issue("p")
    identity.key.write_text("no key")
    with pytest.raises(ConfigError, match=r"tls: .*tls\.key.*not a PEM certificate with its key"):
        files_of(identity, Clock())
    identity.key.unlink()
    with pytest.raises(ConfigError, match=r"tls: .*tls\.key cannot be read: No such file"):
        files_of(identity, Clock())


def test_a_key_with_a_passphrase_is_refused_instead_of_asking_on_a_terminal(tmp_path: Path) -> None:
    identity = Authority(tmp_path).issue("p")
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    pkcs8 = serialization.PrivateFormat.PKCS8
    identity.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, locked))
    with pytest.raises(ConfigError, match="the key has a passphrase"):
        files_of(identity, Clock())


def test_a_server_can_be_given_the_renewed_certificate(tmp_path: Path) -> None:
    identity = Authority(tmp_path).issue("p")
    files = files_of(identity, Clock())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files.load_into(context)
    Authority(tmp_path).issue("p")
    files.load_into(context)
