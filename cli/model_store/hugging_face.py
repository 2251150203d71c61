"""Fetches a model from a Hugging Face hub by that project's own client, so that its token and mirror settings apply."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from twostep.core.errors import ConfigError

NAMED = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")
WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
ORIGIN = "twostep.json"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository at a branch, tag or commit."""

    repository: str
    revision: str

    @property
    def name(self) -> str:
        return self.repository.partition("/")[2]


def hub_model(text: str) -> HubModel | None:
    """Return the model that `hf:OWNER/NAME[@REVISION]` names, or None for any other text."""
    found = NAMED.fullmatch(text)
    return HubModel(found["repository"], found["revision"] or "main") if found else None


def pull_from_hub(model: HubModel, folder: Path) -> Path:
    """Return `folder` with the model in it; one that is whole and of this revision is not fetched again. Raises ConfigError."""
    origin = {"source": f"hf:{model.repository}", "revision": model.revision}
    if (folder / ORIGIN).is_file() and json.loads((folder / ORIGIN).read_text(encoding="utf-8")) == origin:
        return folder
    # Imported late: it takes as long as everything else of the command line.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        snapshot_download(model.repository, revision=model.revision, local_dir=folder, allow_patterns=list(WANTED))
        (folder / ORIGIN).write_text(json.dumps(origin) + "\n", encoding="utf-8")
    except (HfHubHTTPError, OSError, ValueError) as cause:
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise ConfigError(f"cannot fetch {model.repository}@{model.revision}: {reason}") from cause
    return folder
