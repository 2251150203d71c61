"""What `twostep up` can be told, and what it tells each program in turn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from twostep.cli.child import Program
from twostep.cli.cluster import ClusterPlan, Role
from twostep.cli.model_store.catalogue import find_model
from twostep.core.config import check, config, read_values
from twostep.core.errors import ConfigError
from twostep.decode_node.config import DecodeNodeConfig
from twostep.engine.config import EngineConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.router.config import RouterConfig

Values = dict[str, Any]


@config
class ClusterConfig:
    """The keys of `twostep up`'s file and `--set`. A program's own section wins over what is short for it."""

    model: str = "smollm2"
    """Short for the `model` of all programs: a name of `twostep models`, a Hugging Face folder, or `fake`."""
    transport: Literal["nixl", "ucx", "local"] = "nixl"
    """Short for the nodes' `transport`; `local` puts all nodes into one process."""
    num_prefill: Annotated[int, Field(ge=0, le=64)] = 1
    num_decode: Annotated[int, Field(ge=1, le=64)] = 1
    engine: EngineConfig = EngineConfig()
    """Short for `prefill.engine` and `decode.engine`."""
    prefill: PrefillNodeConfig = PrefillNodeConfig()
    """What each prefill node is told."""
    decode: DecodeNodeConfig = DecodeNodeConfig()
    """What each decode node is told."""
    router: RouterConfig = RouterConfig()
    """What the router is told."""


DECIDED_HERE = {"prefill": ("address_file",), "decode": ("address_file",), "router": ("address_file", "prefill", "decode")}
"""Keys that only the command can know, by section."""


def plan_cluster(path: Path | None, overrides: Sequence[str], folder: Path, num_cores: int) -> ClusterPlan:
    """Return the programs to start, which keep their files in `folder`.

    Raises ConfigError, naming source, key and value, and when a model is not on this machine.
    """
    values = read_values(path, overrides)
    checked = check(ClusterConfig, values, path, overrides)
    _refuse_what_is_decided_here(values)
    names: dict[Role, list[str]] = {
        "prefill": [f"prefill-{number}" for number in range(checked.num_prefill)],
        "decode": [f"decode-{number}" for number in range(checked.num_decode)],
    }
    sections = {role: [_node_values(values, checked, role, name, folder) for name in names[role]] for role in names}
    _require_one_transport(sections)
    environment = thread_environment(num_cores, checked.num_prefill + checked.num_decode)
    router = {"model": checked.model, **values.get("router", {}), "address_file": str(folder / "router.json")}
    return ClusterPlan(
        nodes=_one_process(sections, environment) if checked.transport == "local" else _processes(sections, environment),
        address_files={role: tuple(folder / f"{name}.json" for name in names[role]) for role in names},
        router=Program("router", "twostep.router", _with_model_folder(router)),
        router_address_file=folder / "router.json",
        router_drain_s=checked.router.drain_s,
    )


def thread_environment(num_cores: int, num_nodes: int) -> dict[str, str]:
    """Return the environment that shares the cores out among the nodes: threads of two nodes on one core stall both."""
    return {"OMP_NUM_THREADS": str(max(1, num_cores // num_nodes))}


def _refuse_what_is_decided_here(values: Values) -> None:
    for section, keys in DECIDED_HERE.items():
        for key in keys:
            if key in values.get(section, {}):
                raise ConfigError(f"{section}.{key} cannot be set here: twostep up decides it")


def _node_values(values: Values, checked: ClusterConfig, role: Role, name: str, folder: Path) -> Values:
    section = values.get(role, {})
    shared = {"model": checked.model, "transport": checked.transport, "node_id": name}
    engine = {**values.get("engine", {}), **section.get("engine", {})}
    return _with_model_folder({**shared, **section, "engine": engine, "address_file": str(folder / f"{name}.json")})


def _require_one_transport(sections: Mapping[Role, Sequence[Values]]) -> None:
    told = {str(role): nodes[0]["transport"] for role, nodes in sections.items() if nodes}
    if len(set(told.values())) > 1:
        each = ", ".join(f"{role}.transport is {name}" for role, name in told.items())
        raise ConfigError(f"{each}: nodes that name different ones never meet, give all the same")


def _with_model_folder(values: Values) -> Values:
    model: str = values["model"]
    return values if model.startswith("fake") else {**values, "model": str(find_model(model))}


def _processes(sections: Mapping[Role, Sequence[Values]], environment: Mapping[str, str]) -> tuple[Program, ...]:
    return tuple(
        Program(values["node_id"], f"twostep.{role}_node", values, environment)
        for role, nodes in sections.items()
        for values in nodes
    )


def _one_process(sections: Mapping[Role, Sequence[Values]], environment: Mapping[str, str]) -> tuple[Program, ...]:
    return (Program("nodes", "twostep.cli.one_process", {str(role): nodes for role, nodes in sections.items()}, environment),)
