from pathlib import Path

from twostep.cli.cluster_options import add_cluster_options
from twostep.core.program import OneLineParser


def parsed(*argv: str) -> tuple[Path | None, list[str]]:
    parser = OneLineParser(prog="up")
    add_cluster_options(parser)
    arguments = parser.parse_args(argv)
    return arguments.config, arguments.overrides


def test_every_option_is_short_for_a_key_and_the_order_is_kept() -> None:
    argv = ["--model", "smollm2", "--set", "engine.dtype=float32", "--prefill", "2", "--decode", "3", "--port", "0"]
    assert parsed(*argv, "--host", "0.0.0.0", "--transport", "local", "--config", "cluster.yaml") == (
        Path("cluster.yaml"),
        [
            'model="smollm2"',
            "engine.dtype=float32",
            "num_prefill=2",
            "num_decode=3",
            "router.port=0",
            'router.host="0.0.0.0"',
            'transport="local"',
        ],
    )


def test_a_path_with_yaml_in_it_stays_a_path() -> None:
    assert parsed("--model", "./my: model # 1")[1] == ['model="./my: model # 1"']


def test_two_parses_do_not_share_their_overrides() -> None:
    assert parsed("--port", "1")[1] == ["router.port=1"]
    assert parsed("--port", "2")[1] == ["router.port=2"]
