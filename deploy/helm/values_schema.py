"""values.schema.json: types from the defaults in values.yaml, descriptions from its comments, and the rules below."""

import json
from collections.abc import Mapping

from commented_values import Value, commented
from config_schema import Schema, chart_definitions

COUNT: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "integer", "minimum": 1}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
AMOUNT: Schema = {"type": ["integer", "string"], "pattern": "^[0-9]+%?$", "minimum": 0}
QUANTITY: Schema = {"type": ["string", "integer"], "pattern": "^[0-9.]+([eE][0-9]+|[numkKMGTPE]i?)?$"}
NAME: Schema = {"type": "string", "maxLength": 53, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"}
REPOSITORY = "[a-z0-9]+([._-]+[a-z0-9]+)*"
PULL_POLICY: Schema = {"enum": ["IfNotPresent", "Always", "Never"]}
IMAGE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "repository": {"type": "string", "pattern": f"^{REPOSITORY}(/{REPOSITORY})*$"},
        "tag": {"type": ["string", "number"], "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"},
        "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    },
}
STRINGS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
LOG_LEVEL: Schema = {"enum": ["debug", "info", "warning", "error"]}
RULES: dict[str, Schema] = {
    "nameOverride": NAME,
    "fullnameOverride": NAME,
    "images.registry": {"type": "string", "pattern": f"^([a-zA-Z0-9.-]+(:[0-9]+)?(/{REPOSITORY})*)?$"},
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
    "model.image.pullPolicy": PULL_POLICY,
    "model.download.sizeLimit": QUANTITY,
    "router.replicas": COUNT,
    "router.config": {"$ref": "#/$defs/routerConfig"},
    "router.drainSeconds": SECONDS,
    "router.preStopSeconds": COUNT,
    "router.maxUnavailable": {"anyOf": [AMOUNT, {"type": "null"}]},
    "router.logLevel": LOG_LEVEL,
    "router.autoscaling.minReplicas": SECONDS,
    "router.autoscaling.maxReplicas": SECONDS,
    "router.autoscaling.targetCPUUtilization": SECONDS,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.httpPort": PORT,
    "service.grpcPort": PORT,
    "ingress.hosts": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    "commonLabels": STRINGS,
    "nodeDefaults.config": {"allOf": [{"$ref": "#/$defs/prefillConfig"}, {"$ref": "#/$defs/decodeConfig"}]},
    "nodeDefaults.replicas": COUNT,
    "nodeDefaults.device": {"enum": ["cpu", "gpu"]},
    "nodeDefaults.drainSeconds": SECONDS,
    "nodeDefaults.preStopSeconds": COUNT,
    "nodeDefaults.startupSeconds": SECONDS,
    "nodeDefaults.minReadySeconds": COUNT,
    "nodeDefaults.rollingUpdate.maxSurge": AMOUNT,
    "nodeDefaults.rollingUpdate.maxUnavailable": AMOUNT,
    "nodeDefaults.maxUnavailable": {"anyOf": [AMOUNT, {"type": "null"}]},
    "nodeDefaults.autoscaling.kind": {"enum": ["none", "hpa", "keda"]},
    "nodeDefaults.autoscaling.minReplicas": COUNT,
    "nodeDefaults.autoscaling.maxReplicas": SECONDS,
    "nodeDefaults.autoscaling.target": {"type": ["string", "number"]},
    "nodeDefaults.gpuResource": {"type": "string", "minLength": 1},
    "nodeDefaults.ports.grpc": PORT,
    "nodeDefaults.ports.metrics": PORT,
    "nodeDefaults.rdma.count": SECONDS,
    "nodeDefaults.rdma.ucx": {
        "type": "object",
        "propertyNames": {"pattern": "^(UCX|NIXL)_[A-Z0-9_]+$"},
        "additionalProperties": {"type": ["string", "number"]},
    },
    "nodeDefaults.sharedMemory": QUANTITY,
    "nodeDefaults.logLevel": LOG_LEVEL,
    "tls.internal.mode": {"enum": ["certManager", "secrets", "plaintext"]},
    "tls.front.mode": {"enum": ["none", "certManager", "secret"]},
    "networkPolicy.apiServer.ports": {"type": "array", "items": PORT},
    "monitoring.labels": STRINGS,
    "monitoring.dashboardLabels": STRINGS,
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
        pool = {**node, "config": {"$ref": f"#/$defs/{role}Config"}}
        sections[f"{role}Pools"] |= {
            "propertyNames": {"pattern": POOL_NAME},
            "additionalProperties": {"type": ["object", "null"], "additionalProperties": False, "properties": pool},
        }
        del sections[f"{role}Pools"]["properties"]
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
    return {"type": "object", "additionalProperties": False, "properties": properties}
