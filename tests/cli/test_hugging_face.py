"""A model of a hub: named, fetched once for each revision, and whole or not there at all."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from twostep.cli.main import main
from twostep.cli.model_store.hugging_face import HubModel, hub_model


def test_only_what_looks_like_a_repository_is_one() -> None:
    assert hub_model("hf:owner/tiny@v1") == HubModel("owner/tiny", "v1")
    assert hub_model("hf:owner/tiny-1.5@refs/pr/3") == HubModel("owner/tiny-1.5", "refs/pr/3")
    assert hub_model("hf:owner/tiny") == HubModel("owner/tiny", "main")
    assert hub_model("smollm2") is hub_model("hf:tiny") is hub_model("hf:a/b/c") is None


class Hub:
    """Stands in for the hub's client."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def snapshot_download(self, repository: str, *, revision: str, local_dir: Path, **_: Any) -> str:
        self.asked.append((repository, revision))
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / "config.json").write_text(revision)
        if self.error:
            raise self.error
        return str(local_dir)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return hub


def test_it_is_fetched_once_for_each_revision(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for revision in ("v1", "v1", "v2"):
        assert main(["models", "pull", f"hf:owner/tiny@{revision}", "--name", "mine"]) == 0
    folder = tmp_path / "twostep" / "models" / "mine"
    assert capsys.readouterr().out.splitlines() == [str(folder)] * 3
    assert hub.asked == [("owner/tiny", "v1"), ("owner/tiny", "v2")]
    assert (folder / "config.json").read_text() == "v2"


def test_a_failure_is_one_line_and_the_next_try_fetches_again(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.error = OSError("no such repository\nand much more")
    assert main(["models", "pull", "hf:owner/tiny"]) == 2
    assert capsys.readouterr().err == "twostep: cannot fetch owner/tiny@main: no such repository\n"
    hub.error = None
    assert main(["models", "pull", "hf:owner/tiny"]) == 0
    assert hub.asked == [("owner/tiny", "main")] * 2
