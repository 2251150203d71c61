"""Whatever values a person may come up with, an API server takes every object, or Helm refuses with a sentence."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import pytest
import yaml

from twostep.core.config import load
from twostep.decode_node.config import DecodeNodeConfig
from twostep.router.config import RouterConfig
from twostep.tests.helm.admission import refusals
from twostep.tests.helm.binaries import HELM_4
from twostep.tests.helm.chart import CHART, Object, Refused, Rendered, run, template
from twostep.tests.helm.goldens import VALUES

pytestmark = pytest.mark.processes

LAST_WORDS_S = 10.0
"""How long a program may take beyond its drain and its last calls: it waits as long for a thread that hangs."""
ODD = (
    (),
    ('commonLabels={"team": "1", "on": "true"}', 'nodeDefaults.podLabels={"cost": "1e3"}'),
    ('nodeDefaults.env=[{"name": "HOME", "value": "/x"}, {"name": "OMP_NUM_THREADS", "value": "2"}]',),
    ('router.env=[{"name": "HOME", "value": "/x"}]', 'model.download.env=[{"name": "XDG_CACHE_HOME", "value": "/models"}]'),
    ('nodeDefaults.rdma={"enabled": true}', 'nodeDefaults.env=[{"name": "UCX_TLS", "value": "all"}]'),
    ('nodeDefaults.resources={"requests": null, "limits": null}',),
    ("decodePools.default.replicas=0", "router.replicas=0"),
    ("nodeDefaults.minReadySeconds=5000", "nodeDefaults.startupSeconds=1"),
    ("model.name=" + "m" * 100,),
    ("model.name=y",),
    ("tests.enabled=false", "serviceAccount.create=false", "serviceAccount.name=mine"),
    (
        "tls.front.mode=secret",
        "tls.front.secret=web",
        "tls.internal.mode=secrets",
        'tls.internal.secrets={"router": "a", "node": "a"}',
    ),
)


def complaints(rendered: Rendered) -> list[str]:
    return [complaint for one in rendered.objects for complaint in refusals(one)]


@pytest.mark.parametrize("settings", ODD, ids=lambda settings: " ".join(settings)[:60] or "defaults")
def test_odd_values_give_objects_that_an_api_server_takes(settings: Sequence[str]) -> None:
    assert complaints(template(*settings)) == []


@pytest.mark.parametrize("values", VALUES)
def test_the_values_files_give_objects_that_an_api_server_takes(values: str) -> None:
    assert complaints(template(values=values)) == []


@pytest.mark.parametrize("release", ["1", "0x10", "my.release", "9" * 53, "y", "a" * 53])
def test_a_release_of_any_name_gives_objects_that_an_api_server_takes(release: str) -> None:
    assert complaints(template(release=release)) == []


def test_an_admission_that_could_not_refuse_would_show_nothing() -> None:
    [broken] = [one for one in template().of("Deployment") if one["metadata"]["name"] == "twostep-router"]
    spec = {**broken["spec"], "selector": {"matchLabels": {"who": "else"}}, "progressDeadlineSeconds": 0}
    made: Object = {**broken, "metadata": {"name": "Not A Name", "labels": {"on": True}}, "spec": spec}
    assert list(refusals(made)) == [
        "Deployment Not A Name: not a name",
        "label on: True",
        "the selector does not find its own pods",
        "progressDeadlineSeconds must be more than minReadySeconds",
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["model=null"], "model is required"),
        (["nodeDefaults.resources=null"], "nodeDefaults: resources is required"),
        (["commonLabels.team=1"], "commonLabels.team: Invalid type. Expected: string, given: integer"),
        (['commonLabels={"app.kubernetes.io/instance": "x"}'], "commonLabels"),
        (['nodeDefaults.podLabels={"twostep.dev/role": "x"}'], "nodeDefaults.podLabels"),
        (['router.podLabels={"a": "no label"}'], "router.podLabels.a: Does not match pattern"),
        (['nodeDefaults.nodeSelector={"gpu": true}'], "nodeDefaults.nodeSelector.gpu: Invalid type. Expected: string"),
        (["router.podAnnotations.a=1"], "router.podAnnotations.a: Invalid type. Expected: string"),
        (['images.router={"tag": 1.10}'], "images.router.tag: Invalid type. Expected: string, given: number"),
        (["model.image.reference=Not An Image"], "model.image.reference: Does not match pattern"),
        (["decodePools.default.autoscaling.target=many"], "autoscaling.target: Does not match pattern"),
        (["fullnameOverride=1st"], "fullnameOverride: Does not match pattern"),
        (["service.grpcPort=8000"], "service: httpPort and grpcPort are both 8000"),
        (["nodeDefaults.ports.grpc=9090"], "ports.grpc and ports.metrics are both 9090"),
        (["serviceAccount.create=false"], "name the one to use in serviceAccount.name"),
        (
            ["decodePools.default.autoscaling.minReplicas=0", "decodePools.default.autoscaling.kind=hpa"],
            "only kind twostep wakes a pool again",
        ),
        (
            ["nodeDefaults.tensorParallelism=2"],
            "tensorParallelism is 2: a node computes on one GPU, and does not split a model",
        ),
        (
            ["nodeDefaults.device=gpu", 'nodeDefaults.resources={"limits": {"nvidia.com/gpu": 8}}'],
            "resources.limits asks for 8 nvidia.com/gpu: a node computes on one",
        ),
        (["prefillPools.default.rdma.enabled=true"], "prefillPools.default: rdma is enabled and no decode pool has it"),
        (["prefillPools.default.config.allow_tcp=true"], "Additional property allow_tcp is not allowed"),
        (["decodePools.default.rdma.hostNetwork=true"], "give those in networkPolicy.hostCidrs"),
        (['networkPolicy.hostCidrs=["everywhere"]'], "networkPolicy.hostCidrs.0: Does not match pattern"),
    ],
)
def test_what_an_api_server_would_refuse_is_refused_before_it_with_a_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(Refused) as raised:
        template(*settings)
    assert sentence in str(raised.value)


def test_a_pool_may_say_no_and_nothing_where_all_others_say_something() -> None:
    settings = ("nodeDefaults.rdma.enabled=true", "prefillPools.default.rdma.enabled=false")
    root = 'nodeDefaults.podSecurityContext={"runAsNonRoot": false, "runAsUser": 0}'
    objects = template(*settings, root, "decodePools.default.maxUnavailable=0", "router.maxUnavailable=0")
    context = objects.pods()["twostep-prefill-default"]["containers"][0]["securityContext"]
    assert "add" not in context["capabilities"]
    assert objects.pods()["twostep-decode-default"]["securityContext"]["runAsNonRoot"] is False
    allowed = {one["metadata"]["name"]: one["spec"]["maxUnavailable"] for one in objects.of("PodDisruptionBudget")}
    assert allowed == {"twostep-router": 0, "twostep-decode-default": 0, "twostep-prefill-default": 1}
    assert template("router.maxUnavailable=null", "nodeDefaults.maxUnavailable=null").of("PodDisruptionBudget") == []


def test_what_a_person_sets_in_the_environment_replaces_what_the_chart_would() -> None:
    pods = template('nodeDefaults.env=[{"name": "OMP_NUM_THREADS", "value": "7"}]').pods()
    env = {one["name"]: one for one in pods["twostep-prefill-default"]["containers"][0]["env"]}
    assert env["OMP_NUM_THREADS"] == {"name": "OMP_NUM_THREADS", "value": "7"}
    assert set(env) == {"POD_UID", "POD_IP", "HOME", "OMP_NUM_THREADS"}


@pytest.mark.parametrize("call_s", [5, 12.5, 60])
def test_no_pod_is_killed_before_its_program_had_its_time(call_s: float) -> None:
    timers = f'nodeDefaults.config={{"timers": {{"call_s": {call_s}}}}}'
    objects = template(timers, "nodeDefaults.drainSeconds=44", "nodeDefaults.preStopSeconds=7")
    for name in ("twostep-prefill-default", "twostep-decode-default"):
        pod = objects.pods()[name]
        assert pod["terminationGracePeriodSeconds"] >= 7 + 44 + ceil(2 * call_s) + LAST_WORDS_S
    router = template("router.drainSeconds=33", "router.preStopSeconds=4").pods()["twostep-router"]
    assert router["terminationGracePeriodSeconds"] >= 4 + 33 + LAST_WORDS_S


def test_a_rollout_of_routers_waits_for_the_slowest_pool_to_load_its_model() -> None:
    objects = template("nodeDefaults.startupSeconds=60", "decodePools.default.startupSeconds=7200")
    assert objects.one("Deployment", "twostep-router")["spec"]["progressDeadlineSeconds"] > 7200


def test_an_upgrade_changes_no_selector() -> None:
    before, after = (
        template(),
        template(
            "model.name=other",
            'commonLabels={"a": "b"}',
            "router.replicas=3",
            "images.router.tag=next",
            "nodeDefaults.device=cpu",
        ),
    )
    for one in before.of("Deployment"):
        assert after.one("Deployment", one["metadata"]["name"])["spec"]["selector"] == one["spec"]["selector"]
        assert not any("version" in key or "chart" in key for key in one["spec"]["selector"]["matchLabels"])


def peers(rules: list[Object], side: str) -> list[Any]:
    return [peer for rule in rules for peer in rule.get(side, [])]


def test_where_nodes_use_their_machines_network_policies_name_the_machines() -> None:
    settings = ("decodePools.default.rdma.hostNetwork=true", 'networkPolicy.hostCidrs=["10.1.0.0/16"]')
    machines = {"ipBlock": {"cidr": "10.1.0.0/16"}}
    objects = template(*settings)
    nodes, router = (
        objects.one("NetworkPolicy", "twostep-nodes")["spec"],
        objects.one("NetworkPolicy", "twostep-router")["spec"],
    )
    assert machines in peers(nodes["ingress"], "from")
    assert machines in peers(nodes["egress"], "to")
    assert machines in peers(router["egress"], "to")
    assert machines not in peers(router["ingress"], "from")
    elsewhere = template('networkPolicy.hostCidrs=["10.1.0.0/16"]').one("NetworkPolicy", "twostep-nodes")["spec"]
    assert machines not in peers(elsewhere["ingress"], "from")


def test_the_api_server_and_name_servers_can_be_reached_over_either_family() -> None:
    egress = template().one("NetworkPolicy", "twostep-router")["spec"]["egress"]
    [api] = [rule for rule in egress if 6443 in [port["port"] for port in rule.get("ports", ())]]
    assert [peer["ipBlock"]["cidr"] for peer in api["to"]] == ["0.0.0.0/0", "::/0"]
    assert {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]} in egress


def test_addresses_and_names_that_pods_put_into_arguments_are_read_as_text() -> None:
    pods = template().pods()
    [advertised] = [word for word in pods["twostep-decode-default"]["containers"][0]["args"] if "POD_IP" in word]
    [named] = [word for word in pods["twostep-router"]["containers"][0]["args"] if "POD_NAME" in word]
    for address in ("10.0.0.1", "fd00::5", "2001:db8::", "10:20:30:40:50:60:10:20"):
        setting = advertised.replace("$(POD_IP)", address).removeprefix("--set=")
        assert load(DecodeNodeConfig, None, [setting]).advertise_host == address
    for name in ("twostep-router-abc-1", "0123", "true"):
        setting = named.replace("$(POD_NAME)", name).removeprefix("--set=")
        assert load(RouterConfig, None, ["model=fake", setting]).router_id == name


def test_where_rdma_is_meant_prefill_nodes_do_not_take_tcp_for_it_unless_asked_to() -> None:
    def allowed(*settings: str) -> dict[str, Any]:
        maps = {one["metadata"]["name"]: one["data"]["config.yaml"] for one in template(*settings).of("ConfigMap")}
        return {name: yaml.safe_load(text).get("allow_tcp") for name, text in maps.items() if "router" not in name}

    assert allowed() == {"twostep-prefill-default": None, "twostep-decode-default": None}
    assert allowed("nodeDefaults.rdma.enabled=true") == {"twostep-prefill-default": False, "twostep-decode-default": None}
    asked = ("nodeDefaults.rdma.enabled=true", "nodeDefaults.rdma.allowTcp=true")
    assert allowed(*asked) == {"twostep-prefill-default": True, "twostep-decode-default": None}


def test_helm_test_reaches_the_router_even_where_few_may() -> None:
    objects = template('networkPolicy.routerFrom=[{"podSelector": {"matchLabels": {"app": "gateway"}}}]')
    [rule] = objects.one("NetworkPolicy", "twostep-router")["spec"]["ingress"]
    allowed = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    labels = objects.one("Pod", "twostep-test-answers")["metadata"]["labels"]
    assert any(selector.items() <= labels.items() for selector in allowed)


def test_an_older_kubernetes_is_told_that_it_has_no_image_volumes() -> None:
    asked = ["template", "twostep", str(CHART), "--set=model.source=image", "--set=model.image.reference=r/m:1"]
    real = ["--api-versions=apiregistration.k8s.io/v1", "--api-versions=cert-manager.io/v1"]
    with pytest.raises(Refused, match=r"image volumes need Kubernetes 1\.33 or later: this is v1\.32"):
        run(*asked, *real, "--kube-version=1.32.1")
    run(*asked, *real, "--kube-version=1.35.0")


def test_keda_asks_for_the_metrics_of_one_pool_even_where_another_ones_name_begins_alike() -> None:
    objects = template("decodePools.default.autoscaling.kind=keda", "decodePools.default-big.autoscaling.kind=keda")
    queries = {one["metadata"]["name"]: one["spec"]["triggers"][0]["metadata"]["query"] for one in objects.of("ScaledObject")}
    assert 'twostep_dev_pool="default"' in queries["twostep-decode-default"]
    assert 'twostep_dev_pool="default-big"' in queries["twostep-decode-default-big"]


def test_helm_4_renders_odd_values_alike() -> None:
    for settings in ODD:
        assert template(*settings, version=HELM_4).objects == template(*settings).objects


def test_a_configuration_that_a_pool_overrides_reaches_its_node_alone() -> None:
    settings = ("nodeDefaults.config.engine.max_batch=8", "decodePools.default.config.engine.max_batch=16")
    maps = {one["metadata"]["name"]: one["data"]["config.yaml"] for one in template(*settings).of("ConfigMap")}
    batches = {name: yaml.safe_load(text).get("engine", {}).get("max_batch") for name, text in maps.items()}
    assert batches == {"twostep-router": None, "twostep-prefill-default": 8, "twostep-decode-default": 16}
