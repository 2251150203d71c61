"""What a router cannot be started with, and what starting it does not load."""

import json
import subprocess
import sys
from typing import Any

import pytest

from twostep.core.config import check, load, values_of
from twostep.core.errors import ConfigError
from twostep.router.config import RouterConfig
from twostep.router.discovery.choose import choose_discovery


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "decode: expected at least one decode node"),
        ({"decode": ("a:1",)}, "prefill: expected at least one prefill node's host:port, or allow_decode_alone=true"),
        ({"decode": ("a:1",), "prefill": ("b",)}, "node address 'b': expected host:port"),
        ({"discovery": {"dns": {"prefill": ("p:1",)}}}, "discovery.dns.decode: expected at least one decode node"),
        (
            {"decode": ("a:1",), "discovery": {"kubernetes": {}}},
            "discovery: expected one way to find nodes, found prefill and decode and discovery.kubernetes",
        ),
        ({"decode": ("a:70000",), "prefill": ("b:1",)}, "node address 'a:70000': expected host:port"),
    ],
)
def test_a_router_without_usable_nodes_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        choose_discovery(RouterConfig(**settings))
    assert message in str(raised.value)


def test_a_configuration_can_be_handed_on_as_plain_values() -> None:
    told = RouterConfig(
        discovery={"file": {"path": "/nodes.json"}},
        front_tls={"certificate": "/a.pem", "key": "/b.pem"},
        chat_template="/t.jinja",
        cors_origins=("*",),
    )
    assert check(RouterConfig, json.loads(json.dumps(values_of(told)))) == told


def test_nodes_can_be_given_on_the_command_line() -> None:
    config = load(RouterConfig, overrides=["prefill=[127.0.0.1:5001]", "decode=[127.0.0.1:5002, host:5003]"])
    assert config.prefill == ("127.0.0.1:5001",)
    assert config.decode == ("127.0.0.1:5002", "host:5003")
    assert choose_discovery(config).source == "configuration"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ports=1", "unknown key ports"),
        ("port=70000", "port: Input should be less than or equal to 65535"),
        ("lease_s=0", "lease_s: Input should be greater than 0"),
        ("lease_s=.inf", "lease_s: Input should be a finite number"),
    ],
)
def test_a_bad_key_or_value_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(RouterConfig, overrides=[override])
    assert message in str(raised.value)


def test_a_models_name_is_its_folders_unless_given() -> None:
    assert RouterConfig(model="/models/smollm2").model_name == "smollm2"
    assert RouterConfig(model="/models/smollm2", served_model_name="x").model_name == "x"
    assert RouterConfig().model_name == "fake"
    assert RouterConfig(model="fake:step_s=0.1").model_name == "fake"


def test_the_router_loads_neither_torch_nor_an_engine() -> None:
    script = (
        "import sys, twostep.router.serve\n"
        "heavy = {'torch', 'nixl', 'nixl_cu12', 'transformers', 'twostep.engine', 'twostep.kv_transfer'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
