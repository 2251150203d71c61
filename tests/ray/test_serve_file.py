"""What is wrong with a Serve file is said in one line before it is deployed; those that we ship have nothing wrong."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from twostep.core.errors import ConfigError
from twostep.deploy.ray.__main__ import main
from twostep.deploy.ray.agreement import POLICY
from twostep.deploy.ray.serve_file import IMPORT_PATH, check_serve_values

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "ray"
SERVES_OWN = "ray.serve.autoscaling_policy:default_autoscaling_policy"


def file_with(args: dict[str, Any] | None = None, **deployment: Any) -> dict[str, Any]:
    application = {
        "name": "twostep",
        "import_path": IMPORT_PATH,
        "args": args or {},
        "deployments": [{"name": "decode", **deployment}],
    }
    return {"applications": [application]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (file_with({"modle": "x"}), "args: unknown key modle (value 'x'), known here: model, engine, prefill"),
        (
            file_with(num_replica=2),
            "unknown key applications.deployments.num_replica (value 2), known here: name, num_replicas",
        ),
        (file_with(ray_actor_options={"gpus": 1}), "unknown key applications.deployments.ray_actor_options.gpus (value 1)"),
        ({"http_options": {"prot": 1}, "applications": []}, "unknown key http_options.prot (value 1), known here: host, port"),
        (file_with(num_replicas=-1), "applications.0.deployments.0.num_replicas."),
        (file_with(name="decoder"), "deployments: unknown name decoder, known here: prefill, decode, router"),
        (file_with(graceful_shutdown_timeout_s=20), "deployments: decode: graceful_shutdown_timeout_s is 20, but the replica"),
        (
            file_with({"decode": {"timers": {"drain_s": 500}}}, graceful_shutdown_timeout_s=200),
            "deployments: decode: graceful_shutdown_timeout_s is 200, but the replica may take 517 s to leave and drain",
        ),
        (
            file_with(autoscaling_config={"max_replicas": 2}),
            f"deployments: decode: autoscaling_config.policy.policy_function is {SERVES_OWN}",
        ),
        (file_with(num_replicas="auto"), "deployments: decode: autoscaling_config.policy.policy_function is"),
        (
            file_with(autoscaling_config={"min_replicas": 0, "max_replicas": 2, "policy": {"policy_function": POLICY}}),
            "deployments: decode: autoscaling_config.min_replicas is 0",
        ),
        (
            file_with(autoscaling_config={"min_replicas": 3, "max_replicas": 2}),
            "Value error, max_replicas (2) must be greater than or equal to min_replicas (3)",
        ),
        (
            file_with(autoscaling_config={"policy": {"policy_functon": POLICY}}),
            f"unknown key applications.deployments.autoscaling_config.policy.policy_functon (value '{POLICY}')",
        ),
        (file_with(logging_config={"level": "INFO"}), "unknown key applications.deployments.logging_config.level"),
        (file_with(graceful_shutdown_wait_loop_s=1), "deployments: decode: graceful_shutdown_wait_loop_s is 1, but for 2 s"),
        (
            {"applications": [{"name": "t", "import_path": IMPORT_PATH, "deployments": [7]}]},
            "applications.deployments: expected a mapping of keys to values, found 7",
        ),
        (
            {"applications": [{"name": "t", "import_path": IMPORT_PATH, "deployments": 2 * [{"name": "decode"}]}]},
            "deployments: decode is there twice",
        ),
    ],
)
def test_a_mistake_is_named_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_serve_values(values, "serve.yaml")
    assert str(refused.value).startswith(f"serve.yaml: {message}")
    assert "\n" not in str(refused.value)


def test_a_file_with_every_kind_of_section_is_accepted() -> None:
    scaling = {"min_replicas": 1, "max_replicas": 4, "policy": {"policy_function": POLICY}}
    options = {"num_cpus": 2, "num_gpus": 1, "resources": {"rack": 1}}
    values = file_with({"model": "fake"}, autoscaling_config=scaling, ray_actor_options=options, max_surge_percent=50)
    assert check_serve_values({"http_options": {"port": 8000}, "grpc_options": {"port": 9000}, **values}, "serve.yaml") == 1


def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(file_with({"discovery_s": 0})))
    assert main([str(FOLDER / "laptop.yaml")]) == 0
    assert main([str(file)]) == 2
    file.write_text("applications: []")
    assert main([str(file)]) == 2
    assert capsys.readouterr() == (
        f"{FOLDER / 'laptop.yaml'} can be deployed\n",
        f"twostep.deploy.ray: {file}: args: discovery_s: Input should be greater than 0, found 0\n"
        f"twostep.deploy.ray: {file}: no application has import_path: {IMPORT_PATH}\n",
    )


@pytest.mark.processes
def test_without_ray_the_command_says_how_to_get_it() -> None:
    absent = "import sys; sys.modules['ray'] = None; sys.argv = ['', 'x']; import runpy; "
    program = absent + "runpy.run_module('twostep.deploy.ray', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "twostep.deploy.ray: Ray is not installed: run `pip install 'twostep[node,ray]'`\n",
    )


@pytest.mark.processes
def test_with_ray_but_without_serve_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    absent = "import sys; sys.modules['ray.serve'] = None; sys.argv = ['', 'x']; import runpy; "
    program = absent + "runpy.run_module('twostep.deploy.ray', run_name='__main__')"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("twostep.deploy.ray: Ray Serve cannot be loaded: ")
    assert done.stderr.endswith("run `pip install 'twostep[node,ray]'`\n")
    assert done.stderr.count("\n") == 1


def manifest() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
    return told


def test_the_manifest_for_kuberay_carries_a_serve_file_that_can_be_deployed() -> None:
    told = manifest()
    assert (told["apiVersion"], told["kind"], set(told["spec"])) == (
        "ray.io/v1",
        "RayService",
        {"serveConfigV2", "rayClusterConfig"},
    )
    assert check_serve_values(yaml.safe_load(told["spec"]["serveConfigV2"]), "serveConfigV2") == 1


def test_the_manifests_pods_are_what_kubernetes_takes_and_have_time_to_drain() -> None:
    cluster = manifest()["spec"]["rayClusterConfig"]
    assert set(cluster) == {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)
    (worker,) = cluster["workerGroupSpecs"]
    assert set(worker) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert worker["minReplicas"] <= worker["replicas"] <= worker["maxReplicas"]
    # The longest is a decode node's: until all routers know, its drain_s, twice its call_s, and some steps.
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] >= 137
