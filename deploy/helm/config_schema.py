"""The JSON schemas of the programs' configurations, from the dataclasses that read them."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from pydantic import TypeAdapter

from twostep.autoscaler.config import AutoscalerConfig
from twostep.decode_node.config import DecodeNodeConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.router.config import RouterConfig

Schema = dict[str, Any]
PROGRAMS: Mapping[str, type] = {
    "router": RouterConfig,
    "prefill": PrefillNodeConfig,
    "decode": DecodeNodeConfig,
    "autoscaler": AutoscalerConfig,
}
IN_CHART: Mapping[str, Sequence[str]] = {
    "router": (
        *("model", "served_model_name", "port", "grpc_port", "address_file", "router_id", "drain_s"),
        *("prefill", "decode", "discovery", "tls", "front_tls"),
    ),
    "prefill": ("model", "port", "metrics_port", "advertise_host", "address_file", "node_id", "tls", "allow_tcp"),
    "autoscaler": ("prefill", "decode", "routers", "kubernetes", "port", "identity", "address_file"),
    "decode": ("model", "port", "metrics_port", "advertise_host", "address_file", "node_id", "tls"),
}
"""What the chart itself tells each program."""


def config_schema(program: str) -> Schema:
    """Return the schema of everything that a program can be told."""
    config, *bases = (one for one in PROGRAMS[program].__mro__ if is_dataclass(one))
    schema = TypeAdapter(config).json_schema()
    for base in bases:
        # Of a dataclass pydantic reads what its own keys are, not what those are that it inherits.
        for key, inherited in TypeAdapter(base).json_schema()["properties"].items():
            if "description" in inherited:
                schema["properties"][key].setdefault("description", inherited["description"])
    return schema


def chart_definitions() -> dict[str, Schema]:
    """Return the schemas of `config:` for each program, without what the chart decides, and all that they refer to."""
    definitions: dict[str, Schema] = {}
    for program in PROGRAMS:
        schema = config_schema(program)
        definitions |= schema.pop("$defs", {})
        for key in IN_CHART[program]:
            del schema["properties"][key]
        schema.pop("required", None)
        definitions[f"{program}Config"] = schema
    del definitions["Timers"]["properties"]["drain_s"]
    return definitions
