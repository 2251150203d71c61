"""What cannot be is refused by name, with exit code 2."""

from pathlib import Path

import pytest

from twostep.autoscaler.__main__ import AutoscalerConfig, serve
from twostep.core.program import run_program

GOOD = """
prefill: {name: p, selector: role=prefill, max_nodes: 4}
decode: {name: d, selector: role=decode, max_nodes: 4}
routers: {selector: role=router}
"""


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("prefill.min_nodes=5", "prefill: min_nodes is 5, more than max_nodes, 4"),
        ("prefill.min_nodes=0", "prefill.min_nodes is 0 and decode.min_nodes 1: both pools go to zero together, or neither"),
        ("targets.ttft_s=0", "targets.ttft_s: Input should be greater than 0, found 0"),
        ("targets.tpot_s=0", "targets.tpot_s: Input should be greater than 0, found 0"),
        ("prefill.kind=Job", "prefill.kind: Input should be 'Deployment', 'StatefulSet' or 'LeaderWorkerSet', found 'Job'"),
        ("workers.name=x", "unknown key workers"),
        ("decode.name=p", "prefill and decode name the same Deployment, p"),
        ("max_gpus=1", "max_gpus is 1, but the fewest nodes of both pools take 2"),
        ("rates.decode_step_s=0.01", "rates: decode_step_s and decode_sequence_s belong together, found one of them"),
        ("kubernetes.kubeconfig=/nowhere", "kubernetes: "),
    ],
)
def test_a_mistake_ends_it_with_code_2_and_names_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, sentence: str
) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(GOOD)
    arguments = ["--config", str(path), "--set", "kubernetes.namespace=prod", "--set", setting]
    assert run_program("twostep.autoscaler", "", AutoscalerConfig, serve, arguments) == 2
    assert sentence in capsys.readouterr().err
