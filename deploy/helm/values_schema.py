"""values.schema.json: types from the defaults in values.yaml, descriptions from its comments, and the rules below."""

import json
from collections.abc import Mapping

from commented_values import Value, commented
from config_schema import Schema, chart_definitions

COUNT: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
AMOUNT: Schema = {"type": ["integer", "string"], "pattern": "^[0-9]+%?$", "minimum": 0}
QUANTITY: Schema = {"type": ["string", "integer"], "pattern": "^[0-9.]+([eE][0-9]+|[numkKMGTPE]i?)?$"}
NAME: Schema = {"type": "string", "maxLength": 53, "pattern": "^([a-z]([-a-z0-9]*[a-z0-9])?)?$"}
REPOSITORY = "[a-z0-9]+([._-]+[a-z0-9]+)*"
REGISTRY = "[a-zA-Z0-9.-]+(:[0-9]+)?"
TAG = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST = "sha256:[0-9a-f]{64}"
PULL_POLICY: Schema = {"enum": ["IfNotPresent", "Always", "Never"]}
IMAGE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "repository": {"type": "string", "pattern": f"^{REPOSITORY}(/{REPOSITORY})*$"},
        "tag": {"type": "string", "pattern": f"^({TAG})?$"},
        "digest": {"type": "string", "pattern": f"^({DIGEST})?$"},
    },
}
STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
"""A number would be refused by Kubernetes, or be another one: 1.10 is 1.1."""
LABELS: Schema = {
    "type": "object",
    "propertyNames": {"not": {"pattern": r"^(app\.kubernetes\.io|helm\.sh|twostep\.dev)/"}},
    "additionalProperties": {"type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"},
}
"""Labels beside the chart's own, by which Services and policies find their pods."""
CIDRS: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F:.]+/[0-9]{1,3}$"}}
LOG_LEVEL: Schema = {"enum": ["debug", "info", "warning", "error"]}
RULES: dict[str, Schema] = {
    "nameOverride": NAME,
    "fullnameOverride": NAME,
    "images.registry": {"type": "string", "pattern": f"^({REGISTRY}(/{REPOSITORY})*)?$"},
    "images.pullPolicy": PULL_POLICY,
    "images.router": IMAGE,
    "images.node": IMAGE,
    "images.nodeCpu": IMAGE,
    "imagePullSecrets": {"type": "array", "items": {"type": ["string", "object"]}},
    "model.source": {"enum": ["catalogue", "huggingFace", "persistentVolumeClaim", "hostPath", "image", "fake"]},
    "model.name": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"},
    "model.huggingFace.repository": {"type": "string", "pattern": "^([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)?$"},
    "model.huggingFace.revision": {"type": "string", "minLength": 1},
    "model.hostPath.path": {"type": "string", "pattern": "^(/.*)?$"},
    "model.image.reference": {
        "type": "string",
        "pattern": f"^(({REGISTRY}/)?{REPOSITORY}(/{REPOSITORY})*(:{TAG})?(@{DIGEST})?)?$",
    },
    "model.image.pullPolicy": PULL_POLICY,
    "model.download.sizeLimit": QUANTITY,
    "router.replicas": COUNT,
    "router.config": {"$ref": "#/$defs/routerConfig"},
    "router.drainSeconds": POSITIVE,
    "router.preStopSeconds": COUNT,
    "router.maxUnavailable": {"anyOf": [AMOUNT, {"type": "null"}]},
    "router.logLevel": LOG_LEVEL,
    "router.autoscaling.minReplicas": POSITIVE,
    "router.autoscaling.maxReplicas": POSITIVE,
    "router.autoscaling.targetCPUUtilization": POSITIVE,
    "autoscaler.replicas": POSITIVE,
    "autoscaler.config": {"$ref": "#/$defs/autoscalerConfig"},
    "autoscaler.logLevel": LOG_LEVEL,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.httpPort": PORT,
    "service.grpcPort": PORT,
    "ingress.hosts": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    "commonLabels": LABELS,
    "service.annotations": STRINGS,
    "ingress.annotations": STRINGS,
    "serviceAccount.annotations": STRINGS,
    "router.nodeSelector": STRINGS,
    "router.podLabels": LABELS,
    "router.podAnnotations": STRINGS,
    "nodeDefaults.nodeSelector": STRINGS,
    "nodeDefaults.podLabels": LABELS,
    "nodeDefaults.podAnnotations": STRINGS,
    "nodeDefaults.tensorParallelism": POSITIVE,
    "nodeDefaults.config": {"allOf": [{"$ref": "#/$defs/prefillConfig"}, {"$ref": "#/$defs/decodeConfig"}]},
    "nodeDefaults.replicas": COUNT,
    "nodeDefaults.device": {"enum": ["cpu", "gpu"]},
    "nodeDefaults.drainSeconds": POSITIVE,
    "nodeDefaults.preStopSeconds": COUNT,
    "nodeDefaults.startupSeconds": POSITIVE,
    "nodeDefaults.minReadySeconds": COUNT,
    "nodeDefaults.rollingUpdate.maxSurge": AMOUNT,
    "nodeDefaults.rollingUpdate.maxUnavailable": AMOUNT,
    "nodeDefaults.maxUnavailable": {"anyOf": [AMOUNT, {"type": "null"}]},
    "nodeDefaults.autoscaling.kind": {"enum": ["none", "twostep", "hpa", "keda"]},
    "nodeDefaults.autoscaling.minReplicas": COUNT,
    "nodeDefaults.autoscaling.maxReplicas": POSITIVE,
    "nodeDefaults.autoscaling.target": {"type": ["string", "number"], "pattern": r"^([0-9]+(\.[0-9]+)?)?$"},
    "nodeDefaults.gpuResource": {"type": "string", "minLength": 1},
    "nodeDefaults.ports.grpc": PORT,
    "nodeDefaults.ports.metrics": PORT,
    "nodeDefaults.rdma.count": POSITIVE,
    "nodeDefaults.rdma.ucx": {
        "type": "object",
        "propertyNames": {"pattern": "^(UCX|NIXL)_[A-Z0-9_]+$"},
        "additionalProperties": {"type": ["string", "number"]},
    },
    "nodeDefaults.sharedMemory": QUANTITY,
    "nodeDefaults.logLevel": LOG_LEVEL,
    "tls.internal.mode": {"enum": ["certManager", "secrets", "plaintext"]},
    "tls.front.mode": {"enum": ["none", "certManager", "secret"]},
    "networkPolicy.apiServer.cidrs": CIDRS,
    "networkPolicy.apiServer.ports": {"type": "array", "items": PORT},
    "networkPolicy.downloadCidrs": CIDRS,
    "networkPolicy.hostCidrs": CIDRS,
    "monitoring.labels": LABELS,
    "monitoring.dashboardLabels": LABELS,
    "monitoring.certificateSeconds": COUNT,
    "monitoring.minPairBytesPerSecond": COUNT,
    "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
}
OPEN = ("resources", "behavior")
"""Sections whose default is an example of what Kubernetes itself checks."""
TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
POOL_NAME = "^[a-z]([-a-z0-9]{0,14}[a-z0-9])?$"


def values_schema(text: str) -> str:
    """Return the schema of this values.yaml. Raises LookupError for a rule that is about none of its keys."""
    values = {value.path: value for value in commented(text)}
    if unknown := RULES.keys() - {value.key for value in values.values()}:
        raise LookupError(f"rules about keys that values.yaml does not have: {', '.join(sorted(unknown))}")
    root = _section((), values)
    sections = root["properties"]
    # A subchart is given what its parent has for all of them.
    sections["global"] = {"type": "object"}
    node = sections["nodeDefaults"]["properties"]
    for role in ("prefill", "decode"):
        pool = {**_optional(node), "config": {"$ref": f"#/$defs/{role}Config"}}
        sections[f"{role}Pools"] |= {
            "propertyNames": {"pattern": POOL_NAME},
            "additionalProperties": {"type": ["object", "null"], "additionalProperties": False, "properties": pool},
        }
        del sections[f"{role}Pools"]["properties"], sections[f"{role}Pools"]["required"]
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the twostep chart"}
    return json.dumps({**head, **root, "$defs": chart_definitions()}, indent=1) + "\n"


def _schema(value: Value, values: Mapping[tuple[str, ...], Value]) -> Schema:
    if value.key in RULES:
        schema = dict(RULES[value.key])
    elif isinstance(value.default, dict) and value.default and value.path[-1] not in OPEN:
        schema = _section(value.path, values)
    else:
        schema = {"type": TYPES[type(value.default)]}
    return {**schema, "description": value.comment} if value.comment else schema


def _section(path: tuple[str, ...], values: Mapping[tuple[str, ...], Value]) -> Schema:
    """Return the schema of a section that takes only what its default has."""
    inside = [value for value in values.values() if value.path[:-1] == path]
    properties = {value.path[-1]: _schema(value, values) for value in inside}
    needed = [key for key, schema in properties.items() if not _may_be_null(schema)]
    return {"type": "object", "additionalProperties": False, "required": needed, "properties": properties}


def _optional(properties: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the same properties for a section that is laid over one that has them all."""
    return {key: _without_required(schema) for key, schema in properties.items()}


def _without_required(schema: Schema) -> Schema:
    inner = {"properties": _optional(schema["properties"])} if "properties" in schema else {}
    return {**{key: value for key, value in schema.items() if key != "required"}, **inner}


def _may_be_null(schema: Schema) -> bool:
    """Return whether a key may be taken away: Helm does that with one that is set to null."""
    return any(one.get("type") == "null" for one in schema.get("anyOf", ()))
