"""Weights are named by their content, and hashed again only when a file has changed."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from twostep.engine.model_folder import ModelFolder
from twostep.engine.weights_digest import weights_digest


def folder_of(path: Path, **contents: bytes) -> ModelFolder:
    path.mkdir(exist_ok=True)
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return ModelFolder(path, {}, {name: path / name for name in contents})


def test_the_digest_depends_on_the_contents_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    one = weights_digest(folder_of(tmp_path / "one", a=b"first", b=b"second"), cache)
    assert one == weights_digest(folder_of(tmp_path / "two", a=b"first", b=b"second"), cache)
    assert one != weights_digest(folder_of(tmp_path / "three", a=b"first", b=b"other!"), cache)
    hashes = hashlib.sha256(b"first").digest() + hashlib.sha256(b"second").digest()
    assert one == hashlib.sha256(hashes).hexdigest()


def test_an_unchanged_file_is_not_hashed_again_and_a_changed_one_is(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", folder_of(tmp_path / "m", a=b"first")
    before = weights_digest(folder, cache)
    (entry,) = cache.iterdir()
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"sha256": "00" * 32}))
    remembered = hashlib.sha256(bytes(32)).hexdigest()
    assert weights_digest(folder, cache) == remembered != before
    os.utime(tmp_path / "m" / "a", ns=(1, 1))
    assert weights_digest(folder, cache) == before


@pytest.mark.parametrize("broken", ["{", "[]"])
def test_a_broken_memory_is_written_anew(broken: str, tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", folder_of(tmp_path / "m", a=b"first")
    before = weights_digest(folder, cache)
    (entry,) = cache.iterdir()
    entry.write_text(broken)
    assert weights_digest(folder, cache) == before
    assert json.loads(entry.read_text())["sha256"] == hashlib.sha256(b"first").hexdigest()


def test_weights_are_named_where_nothing_can_be_remembered_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(tmp_path / "m", a=b"first")
    (tmp_path / "file").write_text("")
    assert weights_digest(folder, tmp_path / "file" / "cache") == weights_digest(folder, tmp_path / "cache")
    assert [record.message for record in caplog.records] == ["weights will be hashed again at the next start"]
