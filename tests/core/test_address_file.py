import json
from pathlib import Path

import pytest

from twostep.core.address_file import write_address_file
from twostep.core.errors import ConfigError
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.node.address import NodeAddress


def test_the_address_file_tells_who_listens_where(tmp_path: Path) -> None:
    address = NodeAddress(NodeRef(NodeId("n"), Incarnation(7)), "decode", "host:1", "host:2")
    write_address_file(tmp_path / "node.json", address.as_json())
    told = json.loads((tmp_path / "node.json").read_text())
    assert told == {"grpc": "host:1", "metrics": "host:2", "node": "n", "incarnation": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]


def test_a_folder_that_is_not_there_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "node.json"
    with pytest.raises(ConfigError) as raised:
        write_address_file(path, {})
    assert str(raised.value) == f"address_file: {path} cannot be written: No such file or directory"
