"""What the Ray Serve application can be told: the keys of `twostep up`, as the `args` of a Serve file.

How Serve runs each program is said where Serve has its own words for it, in the file's `deployments`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from twostep.core.config import Seconds, check, config
from twostep.core.errors import ConfigError
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.config import EngineConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.router.config import RouterConfig

Values = dict[str, Any]
Role = Literal["prefill", "decode"]
Name = Literal["prefill", "decode", "router"]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[int, Field(gt=0)]

ROLES: tuple[Role, ...] = ("prefill", "decode")
FILE = Path("args")
"""Where a mistake is said to be."""


@config
class TargetsConfig:
    """When a node counts as full: a pool that scales gets as many nodes as its load would fill."""

    prefill_busy: Share = 0.7
    """The share of its time that a prefill node computes."""
    prefill_queued_tokens: Positive = 4096
    """Prompt tokens that wait for a prefill node."""
    decode_kv: Share = 0.8
    """The share of its KV blocks that a decode node has given out."""
    decode_requests: Positive = 32
    """Requests on a decode node, those that wait for memory included."""


@config
class AppConfig:
    """The `args` of the application. A program's own section wins over what is short for it."""

    model: str = "smollm2"
    """Short for the `model` of all programs: a name of `twostep models`, a Hugging Face folder, or `fake`. It has to be on
    every machine that runs one of them."""
    engine: EngineConfig = EngineConfig()
    """Short for `prefill.engine` and `decode.engine`."""
    prefill: PrefillNodeConfig = PrefillNodeConfig()
    """What each prefill node is told."""
    decode: DecodeNodeConfig = DecodeNodeConfig()
    """What each decode node is told."""
    router: RouterConfig = RouterConfig()
    """What each router is told."""
    targets: TargetsConfig = TargetsConfig()
    discovery_s: Seconds = 0.5
    """How often each router's replica asks Serve which nodes there are."""


DECIDED_HERE = {
    "prefill": ("address_file", "node_id"),
    "decode": ("address_file", "node_id"),
    "router": ("address_file", "router_id", "prefill", "decode", "discovery"),
}
"""Keys that only a replica can know, by section."""


def check_args(values: Values) -> AppConfig:
    """Return the configuration that `values` give. Raises ConfigError, naming key, value and expectation."""
    checked = check(AppConfig, values, FILE)
    for section, keys in DECIDED_HERE.items():
        for key in keys:
            if key in values.get(section, {}):
                raise ConfigError(f"{FILE}: {section}.{key} cannot be set here: the replica decides it")
    prefill, decode = checked.prefill.transport, checked.decode.transport
    if "local" in (prefill, decode):
        raise ConfigError(f"{FILE}: transport: local joins nodes of one process, and each replica has its own: use nixl or ucx")
    if prefill != decode:
        raise ConfigError(f"{FILE}: prefill.transport is {prefill} and decode.transport {decode}: give both the same")
    return checked
