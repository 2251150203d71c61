import json
from pathlib import Path

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.node.address import NodeAddress, write_address_file


def test_the_address_file_tells_who_listens_where(tmp_path: Path) -> None:
    address = NodeAddress(NodeRef(NodeId("n"), Incarnation(7)), "decode", "host:1", "host:2")
    write_address_file(tmp_path / "node.json", address)
    told = json.loads((tmp_path / "node.json").read_text())
    assert told == {"grpc": "host:1", "metrics": "host:2", "node": "n", "incarnation": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]
