"""Looks at what a program was told: its configuration, its model's folder, its certificates."""

import json
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from twostep.cli.checkup.finding import Finding
from twostep.core.certificates import CertificateFiles, FrontTlsConfig, TlsConfig, files_of
from twostep.core.config import check, read_values
from twostep.core.errors import ConfigError
from twostep.kv_transfer.carrier import RDMA_FOLDER

DAY_S = 86400
MIN_DAYS = 7
"""A certificate that ends sooner should have been renewed."""
TOKENIZER = "tokenizer.json"


def check_program(path: Path) -> Iterator[Finding]:
    """Look at the configuration file of a router or node. Raises ConfigError when it cannot be read."""
    values = read_values(path)
    if model := values.get("model"):
        yield _model(str(model))
    if tls := values.get("tls"):
        yield _certificate(check(TlsConfig, tls, path))
    if front := values.get("front_tls"):
        yield _front_certificate(check(FrontTlsConfig, front, path))
    if not values.get("allow_tcp", True):
        yield _rdma(sorted(f"{port.parents[1].name}:{port.name}" for port in RDMA_FOLDER.glob("*/ports/*")))


def _model(model: str) -> Finding:
    if model.partition(":")[0] == "fake":
        return Finding("model", "fake: for tests, no model at all")
    folder = Path(model)
    lacking = [name for name in ("config.json", TOKENIZER) if not (folder / name).is_file()] + _missing_weights(folder)
    if lacking:
        found = f"{model} lacks {', '.join(lacking)}" if folder.is_dir() else f"there is no folder {model}"
        return Finding("model", found, "fetch it anew, or mount what holds it: a folder in Hugging Face format is expected")
    return Finding("model", f"{model} is whole")


def _missing_weights(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]
    files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return sorted({name for name in files.values() if not (folder / name).is_file()})


def _certificate(tls: TlsConfig) -> Finding:
    try:
        files = files_of(tls)
        _shake_hands(tls)
    except (ConfigError, ssl.SSLError) as error:
        return Finding("certificate", str(error), f"issue one for the DNS name {tls.name}, signed by an authority of {tls.ca}")
    return _with_end("certificate", f"{tls.certificate} is valid for {tls.name}", files)


def _front_certificate(tls: FrontTlsConfig) -> Finding:
    try:
        return _with_end("front certificate", str(tls.certificate), CertificateFiles(tls.certificate, tls.key))
    except ConfigError as error:
        return Finding("front certificate", str(error), "issue one with its key; clients are refused without")


def _with_end(subject: str, says: str, files: CertificateFiles) -> Finding:
    left_days = (files.ends_at() - time.time()) / DAY_S
    advice = "" if left_days >= MIN_DAYS else "renew it: find out why nobody has (cert-manager: kubectl describe certificate)"
    return Finding(subject, f"{says}, {left_days:.0f} days more", advice)


def _rdma(ports: Sequence[str]) -> Finding:
    if ports:
        return Finding("RDMA", f"allow_tcp is false, ports here: {', '.join(ports)}")
    advice = "give the pod RDMA devices (rdma.resource in the chart), or let KV cross over TCP (rdma.allowTcp)"
    return Finding("RDMA", "allow_tcp is false, and there is no RDMA port here", advice)


def _shake_hands(tls: TlsConfig) -> None:
    """Let the program's own certificate be looked at as a peer would. Raises ssl.SSLError with what is wrong with it."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(tls.ca))
    server.load_cert_chain(tls.certificate, tls.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends: list[Any] = [
        client.wrap_bio(to_client, to_server, server_hostname=tls.name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
