"""Reads from a certificate when it ends; OpenSSL has checked the rest by then."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

END = "-----END CERTIFICATE-----"
VERSION, UTC_TIME = 0xA0, 0x17
"""Tags of DER, as in RFC 5280: the optional first field of what is signed, and a time with two digits for the year."""
LONG = 0x80
"""Set in a length that stands in the bytes after it."""


def ends_at(pem: bytes) -> float:
    """Return the Unix time at which the first certificate in `pem` ends. Raises ValueError where there is none."""
    first, end, _ = pem.decode("ascii", "replace").partition(END)
    start = first.find("-----BEGIN CERTIFICATE-----")
    if start < 0 or not end:
        raise ValueError("no certificate")
    _, certificate = next(_fields(ssl.PEM_cert_to_DER_cert(first[start:] + end)))
    _, signed = next(_fields(certificate))
    # What is signed: version, serial number, algorithm, issuer, validity, ...; validity: from when, until when.
    inside = [content for tag, content in _fields(signed) if tag != VERSION]
    tag, text = list(_fields(inside[3]))[1]
    shape = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), shape).replace(tzinfo=UTC).timestamp()


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each field of a sequence."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & LONG:
            width = size & ~LONG
            size, at = int.from_bytes(der[at : at + width], "big"), at + width
        yield tag, der[at : at + size]
        at += size
