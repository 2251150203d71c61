"""Kernels are compiled once, chosen by what the processor has, and never replaced by torch in silence."""

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from twostep.core.errors import ConfigError
from twostep.engine import cpu_forward
from twostep.engine.config import EngineConfig
from twostep.engine.kernels.cpu.choice import Kernels, NoKernels, choose_kernels
from twostep.engine.kernels.cpu.compiler import SOURCES, compiled_kernels
from twostep.engine.kernels.cpu.instruction_set import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    INSTRUCTION_SETS,
    PORTABLE,
    InstructionSet,
    available,
)
from twostep.engine.model_folder import open_model_folder
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.decoder import Decoder
from twostep.engine.torch_runner import TorchRunner
from twostep.engine.weights import empty_model
from twostep.tests.engine.tiny_llama import write_tiny_llama


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes its own name into what it is to build, and one line into `calls` each time."""
    program = tmp_path / "fake-g++"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && { echo fake 1.0; exit; }\n'
        f'echo "$@" >> {tmp_path}/calls\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'echo fake > "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    return program


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def model(tmp_path: Path) -> CausalLM:
    return empty_model(open_model_folder(write_tiny_llama(tmp_path / "m").folder))


def cpuinfo(tmp_path: Path, flags: str, vendor: str = "AuthenticAMD") -> Path:
    file = tmp_path / "cpuinfo"
    file.write_text("\n".join(f"processor\t: {core}\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n" for core in (0, 1)))
    return file


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse2", [PORTABLE]),
        ("sse2 avx2 fma", [AVX2, PORTABLE]),
        ("avx2 fma avx512f avx512bw avx512vl avx512dq", [AVX512, AVX2, PORTABLE]),
        ("avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16", [AVX512_BF16, AVX512, AVX2, PORTABLE]),
    ],
)
def test_the_best_instructions_of_the_processor_come_first(
    flags: str, expected: list[InstructionSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert available(cpuinfo(tmp_path, flags)) == expected


SINCE_SAPPHIRE_RAPIDS = "avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16 avx512_fp16"


@pytest.mark.parametrize(("vendor", "best"), [("GenuineIntel", AVX512), ("AuthenticAMD", AVX512_BF16)])
def test_where_pairs_of_bfloat16_are_slow_to_multiply_float32_is(
    vendor: str, best: InstructionSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = available(cpuinfo(tmp_path, SINCE_SAPPHIRE_RAPIDS, vendor))
    assert found[0] == best
    assert {*found, AMX} == set(INSTRUCTION_SETS)


def test_where_tiles_are_to_be_seen_they_come_first_and_pairs_of_bfloat16_last_but_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = available(cpuinfo(tmp_path, f"{SINCE_SAPPHIRE_RAPIDS} amx_bf16 amx_tile amx_int8", "GenuineIntel"))
    assert found == [AMX, AVX512, AVX512_BF16, AVX2, PORTABLE]


def test_a_processor_that_does_not_tell_gets_what_runs_everywhere(tmp_path: Path) -> None:
    assert available(tmp_path / "none") == [PORTABLE]


def test_kernels_are_compiled_once_for_each_type_and_compiler(compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = compiled_kernels(AVX2, "bfloat16", cache)
    assert first.read_text() == "fake\n"
    assert compiled_kernels(AVX2, "bfloat16", cache) == first
    (call,) = calls(tmp_path)
    assert "-mavx2 -mfma" in call
    assert "-DTWOSTEP_TYPE=Bfloat16" in call
    other_type = compiled_kernels(AVX2, "float32", cache)
    compiler.write_text(compiler.read_text().replace("fake 1.0", "fake 1.1"))
    other_compiler = compiled_kernels(AVX2, "float32", cache)
    assert len({first, other_type, other_compiler}) == len(calls(tmp_path)) == 3
    assert sorted(cache.iterdir()) == sorted([first, other_type, other_compiler])


def test_another_checkout_finds_what_one_has_compiled(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled_kernels(AVX2, "bfloat16", tmp_path / "cache")
    elsewhere = shutil.copytree(SOURCES, tmp_path / "elsewhere")
    monkeypatch.setattr("twostep.engine.kernels.cpu.compiler.SOURCES", elsewhere)
    assert compiled_kernels(AVX2, "bfloat16", tmp_path / "cache", elsewhere / "abi.cpp") == first
    (elsewhere / "abi.cpp").write_text("// another\n")
    assert compiled_kernels(AVX2, "bfloat16", tmp_path / "cache", elsewhere / "abi.cpp") != first


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo version", r"there is no C\+\+ compiler: .*/none is not on the PATH"),
        ("[ $1 = --version ] && exit; echo in file >&2; echo 'abi.cpp:1: error: no' >&2; exit 1", "abi.cpp:1: error: no"),
    ],
)
def test_without_a_compiler_that_works_torch_computes_and_says_why(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "broken"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program if "error" in script else tmp_path / "none"))
    served = model(tmp_path)
    with caplog.at_level(logging.WARNING, logger="twostep"):
        chosen = choose_kernels(served, EngineConfig(), tmp_path / "cache")
    assert isinstance(chosen, NoKernels)
    assert chosen.description == f"torch ({chosen.reason})"
    with pytest.raises(ConfigError, match=reason):
        choose_kernels(served, EngineConfig(kernels="portable"), tmp_path / "cache")
    assert "torch computes, several times slower than the CPU kernels would" in caplog.messages


def test_where_nothing_can_be_kept_they_are_compiled_at_each_start(
    compiler: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, logger="twostep"):
        library = compiled_kernels(PORTABLE, "float32", tmp_path / "file" / "kernels")
    assert library.read_text() == "fake\n"
    assert caplog.messages == ["the CPU kernels cannot be kept: they are compiled at each start"]


def test_a_model_that_they_do_not_cover_is_left_to_torch(compiler: Path, tmp_path: Path) -> None:
    odd = model(tmp_path)
    assert isinstance(odd, Decoder)
    odd.layers[-1].mlp.activate = torch.relu
    assert choose_kernels(odd, EngineConfig(), tmp_path).description == "torch (the CPU kernels do not cover this model)"
    assert not (tmp_path / "calls").exists()


def test_torch_is_chosen_by_name(tmp_path: Path) -> None:
    assert choose_kernels(model(tmp_path), EngineConfig(kernels="torch"), tmp_path).description == "torch"


def test_instructions_that_the_processor_lacks_are_refused(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twostep.engine.kernels.cpu.choice.available", lambda: [PORTABLE])
    with pytest.raises(ConfigError, match=r"engine.kernels = avx2: this processor has only portable"):
        choose_kernels(model(tmp_path), EngineConfig(kernels="avx2"), tmp_path)
    chosen = choose_kernels(model(tmp_path), EngineConfig(), tmp_path)
    assert isinstance(chosen, Kernels)
    assert chosen.name == "portable"


@pytest.mark.model
def test_a_fingerprint_names_the_kernels(kernels: str, tmp_path: Path) -> None:
    config = EngineConfig(kv_bytes=1 << 20, num_threads=1, kernels=kernels)
    runner = TorchRunner(write_tiny_llama(tmp_path / "m").folder, config)
    assert runner.kernels == kernels
    assert runner.fingerprint.numerics.split()[0] == kernels


def test_a_system_that_keeps_the_processors_tiles_to_itself_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_forward, "open_library", lambda _: SimpleNamespace(may_multiply=lambda: 0))
    folder = write_tiny_llama(tmp_path / "m").folder
    with pytest.raises(ConfigError, match=r"does not let this process use portable: name others in engine\.kernels"):
        TorchRunner(folder, EngineConfig(kernels="portable", kv_bytes=1 << 20))
