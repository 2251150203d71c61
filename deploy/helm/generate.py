"""Writes what must not be written twice: the chart's values.schema.json, README and dashboards, and docs/configuration.md.

`python deploy/helm/generate.py`; with --check it only tells what is stale, and ends with 1.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from configuration import configuration_page  # noqa: E402 - a script's own folder
from dashboards import dashboards  # noqa: E402
from readme import readme  # noqa: E402
from values_schema import values_schema  # noqa: E402


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each file with what it should hold."""
    chart = HERE / "twostep"
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    yield chart / "values.schema.json", values_schema(values)
    yield chart / "README.md", readme(values)
    yield ROOT / "docs" / "configuration.md", configuration_page()
    for name, board in dashboards().items():
        yield chart / "dashboards" / f"{name}.json", board


def main(arguments: list[str]) -> int:
    stale: Mapping[Path, str] = {path: text for path, text in generated() if not path.exists() or path.read_text() != text}
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run make chart", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
