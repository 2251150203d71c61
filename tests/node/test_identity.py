import pytest

from twostep.core.errors import ConfigError
from twostep.node.config import NodeConfig
from twostep.node.identity import advertised_host, new_identity


def test_a_configured_name_is_kept_and_each_life_has_its_own_incarnation() -> None:
    first, second = (new_identity(NodeConfig(node_id="n")) for _ in range(2))
    assert first.id == second.id == "n"
    assert first.incarnation != second.incarnation


def test_a_pods_uid_is_its_nodes_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", "0b9a")
    assert new_identity(NodeConfig()).id == "0b9a"


def test_two_nameless_nodes_of_one_process_have_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_UID", raising=False)
    names = {new_identity(NodeConfig(host="0.0.0.0")).id for _ in range(2)}
    assert len(names) == 2
    assert not any("0.0.0.0" in name for name in names)


def test_a_wildcard_is_never_advertised() -> None:
    assert advertised_host(NodeConfig(host="0.0.0.0")) not in {"", "0.0.0.0"}
    assert advertised_host(NodeConfig(host="0.0.0.0", advertise_host="10.0.0.1")) == "10.0.0.1"
    assert advertised_host(NodeConfig(host="127.0.0.1")) == "127.0.0.1"
    assert advertised_host(NodeConfig(host="::")) not in {"", "::"}


def test_a_machine_that_does_not_know_its_address_says_what_to_configure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(ConfigError, match="advertise_host"):
        advertised_host(NodeConfig(host="0.0.0.0"))
