"""The chart, rendered: objects as they would be sent to a cluster, or the sentence with which they are refused."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from twostep.tests.helm.binaries import HELM_3, HelmWheel, helm

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "twostep"
Object = dict[str, Any]
CERT_MANAGER = ("--api-versions=cert-manager.io/v1",)


class Refused(Exception):
    """Helm did not render the chart. The message is what a person reads."""


@dataclass(frozen=True, slots=True)
class Rendered:
    objects: Sequence[Object]

    def of(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        [found] = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        return found

    def pods(self) -> Mapping[str, Object]:
        """Return every pod template by the name of what makes the pods."""
        made = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in self.of("Deployment")}
        return made | {one["metadata"]["name"]: one["spec"] for one in self.of("Pod")}


def run(*arguments: str, version: HelmWheel = HELM_3) -> str:
    done = subprocess.run([str(helm(version)), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


@cache
def template(
    *settings: str, values: str = "", release: str = "twostep", namespace: str = "prod", version: HelmWheel = HELM_3
) -> Rendered:
    """Render the chart with `--set` settings, and with one of its own values files. Raises Refused."""
    chosen = [f"--values={CHART / 'values' / values}.yaml"] if values else []
    given = [
        word for setting in settings for word in ("--set-json" if "={" in setting or "=[" in setting else "--set", setting)
    ]
    text = run("template", release, str(CHART), f"--namespace={namespace}", *chosen, *given, version=version)
    return Rendered([one for one in yaml.load_all(text, yaml.CSafeLoader) if one])


def without(spec: Object, *keys: str) -> Object:
    return {key: value for key, value in spec.items() if key not in keys}
