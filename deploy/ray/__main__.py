"""Checks Serve files: `python -m twostep.deploy.ray FILE...`. One line says what to change, with exit code 2."""

import sys
from importlib.util import find_spec
from pathlib import Path

from twostep.core.errors import ConfigError


def main(names: list[str]) -> int:
    try:
        _require_ray()
        for name in names:
            _check(Path(name))
    except ConfigError as error:
        print(f"twostep.deploy.ray: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _require_ray() -> None:
    if find_spec("ray") is None:
        raise ConfigError("Ray is not installed: run `pip install 'twostep[node,ray]'`")


def _check(path: Path) -> None:
    try:
        # Where Ray is absent, this could not even be imported.
        from twostep.deploy.ray.serve_file import IMPORT_PATH, check_serve_file
    except ImportError as cause:
        raise ConfigError(f"Ray Serve cannot be loaded: {cause}: run `pip install 'twostep[node,ray]'`") from cause

    if not check_serve_file(path):
        raise ConfigError(f"{path}: no application has import_path: {IMPORT_PATH}")
    print(f"{path} can be deployed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
