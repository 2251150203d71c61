from pathlib import Path
from typing import Any

import pytest

from twostep.cli.child import Program
from twostep.cli.cluster import ClusterPlan
from twostep.cli.cluster_config import plan_cluster
from twostep.core.errors import ConfigError

FOLDER = Path("run")


def plan(*overrides: str, file: Path | None = None, num_cores: int = 2) -> ClusterPlan:
    return plan_cluster(file, ["model=fake", *overrides], FOLDER, num_cores)


def configs(built: ClusterPlan) -> dict[str, Any]:
    return {program.name: program.config for program in (*built.nodes, built.router)}


def test_one_of_each_by_default_and_each_tells_its_address() -> None:
    assert plan() == ClusterPlan(
        nodes=(
            Program("prefill-0", "twostep.prefill_node", node("prefill-0"), {"OMP_NUM_THREADS": "1"}),
            Program("decode-0", "twostep.decode_node", node("decode-0"), {"OMP_NUM_THREADS": "1"}),
        ),
        address_files={"prefill": (Path("run/prefill-0.json"),), "decode": (Path("run/decode-0.json"),)},
        router=Program("router", "twostep.router", {"model": "fake", "address_file": "run/router.json"}),
        router_address_file=Path("run/router.json"),
        router_drain_s=30.0,
    )


def node(name: str) -> dict[str, Any]:
    return {"model": "fake", "transport": "nixl", "node_id": name, "engine": {}, "address_file": f"run/{name}.json"}


def test_pools_have_as_many_nodes_as_asked() -> None:
    built = plan("num_prefill=2", "num_decode=3")
    assert [program.name for program in built.nodes] == ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]


def test_engine_is_short_for_both_nodes_and_the_nodes_own_section_wins() -> None:
    told = configs(plan("engine.dtype=float32", "engine.max_batch=4", "decode.engine.max_batch=8", "prefill.max_queued=9"))
    assert told["prefill-0"]["engine"] == {"dtype": "float32", "max_batch": 4}
    assert told["decode-0"]["engine"] == {"dtype": "float32", "max_batch": 8}
    assert told["prefill-0"]["max_queued"] == 9
    assert "max_queued" not in told["decode-0"]
    assert "engine" not in told["router"]


def test_a_programs_own_model_wins() -> None:
    told = configs(plan("router.model=fake:vocab_size=500"))
    assert (told["router"]["model"], told["decode-0"]["model"]) == ("fake:vocab_size=500", "fake")


def test_a_local_folder_is_a_model(tmp_path: Path) -> None:
    assert configs(plan(f"model={tmp_path}"))["decode-0"]["model"] == str(tmp_path)


def test_the_local_transport_puts_all_nodes_into_one_process() -> None:
    built = plan("transport=local", "num_decode=2")
    assert [(program.name, program.module) for program in built.nodes] == [("nodes", "twostep.cli.one_process")]
    told = built.nodes[0].config
    assert [values["node_id"] for values in told["prefill"]] == ["prefill-0"]
    assert [values["node_id"] for values in told["decode"]] == ["decode-0", "decode-1"]


@pytest.mark.parametrize(("num_cores", "threads"), [(1, "1"), (2, "1"), (4, "2"), (7, "3")])
def test_the_cores_are_shared_out_among_the_nodes(num_cores: int, threads: str) -> None:
    assert plan(num_cores=num_cores).nodes[0].environment == {"OMP_NUM_THREADS": threads}


def test_the_file_holds_a_section_per_program(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("engine: {dtype: float32}\nrouter: {port: 1}\nnum_decode: 2\n")
    told = configs(plan("router.port=2", file=file))
    assert told["decode-1"]["engine"] == {"dtype": "float32"}
    assert told["router"]["port"] == 2


def test_the_readmes_file_says_what_the_readme_says(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    file = tmp_path / "cluster.yaml"
    file.write_text(readme.partition("```yaml\n")[2].partition("```")[0])
    told = configs(plan("engine.dtype=bfloat16", "decode.engine.max_batch=16", file=file))
    assert sorted(told) == ["decode-0", "decode-1", "prefill-0", "prefill-1", "router"]
    assert told["prefill-0"]["max_queued"] == 64
    assert told["decode-0"]["engine"] == {"dtype": "bfloat16", "max_batch": 16}
    assert told["router"]["port"] == 8000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.dtyp=1", "--set: unknown key engine.dtyp (value 1), known here: device, dtype, "),
        ("prefil.x=1", "--set: unknown key prefil (value {'x': 1}), known here: model, transport, "),
        ("router.port=http", "--set: router.port: Input should be a valid integer"),
        ("num_decode=0", "--set: num_decode: Input should be greater than or equal to 1, found 0"),
        ("router.decode=[a:1]", "router.decode cannot be set here: twostep up decides it"),
        ("prefill.address_file=x", "prefill.address_file cannot be set here: twostep up decides it"),
        ("decode.transport=ucx", "prefill.transport is nixl, decode.transport is ucx: nodes that name different ones never"),
        ("model=absent", "model 'absent' is neither a folder nor in the catalogue"),
    ],
)
def test_a_mistake_is_found_before_anything_is_started(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(override)
    assert str(caught.value).startswith(message)
