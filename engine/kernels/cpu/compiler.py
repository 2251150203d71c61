"""Compiles the CPU kernels, once for each source, compiler and set of instructions, and remembers where."""

import atexit
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from twostep.core.errors import ConfigError
from twostep.engine.kernels.cpu.instruction_set import InstructionSet

SOURCES = Path(__file__).parent
FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi"),
    *("-ffp-contract=off", "-fvisibility=hidden", "-fno-gnu-unique"),
)
"""No product is contracted into a sum but where the source says so: a row's bits must not depend on the loop around it.
Several libraries may be loaded at once, and share no symbol."""
TYPES = {"float32": "Float32", "bfloat16": "Bfloat16"}
COMPILE_LIMIT_S = 300.0

log = logging.getLogger(__name__)


def compiled_kernels(instructions: InstructionSet, dtype: str, cache: Path, source: Path = SOURCES / "abi.cpp") -> Path:
    """Return the library that `source` makes for `dtype`, compiled now unless it lies in `cache`. Raises ConfigError, in one
    line, when they cannot be had here.

    Several processes may do this at once: what is renamed into place is whole, and the same from each of them.
    """
    compiler, version = _compiler()
    command = (compiler, *FLAGS, *instructions.compiler_flags, f"-DTWOSTEP_TYPE={TYPES[dtype]}")
    library = cache / f"{instructions.name}-{dtype}-{_name_of(command, version, source)}.so"
    if not library.is_file():
        library = _writable(cache) / library.name
        _compile((*command, f"-I{SOURCES}", str(source)), library)
    return library


def _writable(cache: Path) -> Path:
    """Return the cache, or, where nothing can be kept there, a folder that goes with this process."""
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    log.warning("the CPU kernels cannot be kept: they are compiled at each start", extra={"cache": str(cache)})
    folder = tempfile.mkdtemp(prefix="twostep-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _compiler() -> tuple[str, str]:
    """Return the path of the compiler and what it says about itself. Raises ConfigError."""
    wanted = os.environ.get("CXX", "g++")
    found = shutil.which(wanted)
    if found is None:
        raise ConfigError(f"there is no C++ compiler: {wanted} is not on the PATH")
    return found, _run((found, "--version"))


def _name_of(command: tuple[str, ...], version: str, source: Path) -> str:
    """Name what comes of the command and the source, wherever that lies: another checkout need not compile it again."""
    digest = hashlib.sha256(repr((command, version)).encode())
    for file in (source, *sorted(SOURCES.glob("*.h"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _compile(command: tuple[str, ...], library: Path) -> None:
    log.info("compiling CPU kernels, once: some seconds", extra={"library": str(library)})
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = Path(folder) / library.name
            _run((*command, "-o", str(built)))
            built.rename(library)
    except OSError as cause:
        raise ConfigError(f"the CPU kernels cannot be kept in {library.parent}: {cause.strerror}") from cause
    log.info("compiled CPU kernels", extra={"seconds": round(time.monotonic() - started, 1)})


def _run(command: tuple[str, ...]) -> str:
    """Return what a program prints. Raises ConfigError with the first line that says error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S)
    except subprocess.TimeoutExpired as cause:
        raise ConfigError(f"{command[0]} took more than {COMPILE_LIMIT_S:.0f} s") from cause
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError(f"{command[0]}: {next((line for line in lines if 'error' in line), lines[-1])}")
    return done.stdout
