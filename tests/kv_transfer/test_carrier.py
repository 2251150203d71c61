"""What has carried a write is known from what was sent, over real sockets and real NIXL too."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from twostep.kv_transfer.carrier import Carrier, Traffic, carrier_of, read_traffic

SELF_TEST = """
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.self_test import move_some_bytes
print(move_some_bytes(NixlTransport).carrier)
"""


@pytest.mark.parametrize(
    ("sent", "carrier"),
    [
        (Traffic(), Carrier.MEMORY),
        (Traffic(tcp_bytes=99, rdma_bytes=99), Carrier.MEMORY),
        (Traffic(rdma_bytes=100), Carrier.RDMA),
        (Traffic(tcp_bytes=100), Carrier.TCP),
        (Traffic(tcp_bytes=100, rdma_bytes=1 << 40), Carrier.TCP),
        (Traffic(tcp_bytes=99, rdma_bytes=101), Carrier.RDMA),
    ],
)
def test_what_has_grown_by_the_size_of_a_write_has_carried_it(sent: Traffic, carrier: Carrier) -> None:
    before = Traffic(7, 9)
    after = Traffic(before.tcp_bytes + sent.tcp_bytes, before.rdma_bytes + sent.rdma_bytes)
    assert carrier_of(before, after, 100) is carrier


def test_what_this_process_sends_over_tcp_is_counted_to_the_byte_and_what_others_share_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far, socket.socket(socket.AF_UNIX) as other:
            before = read_traffic()
            near.sendall(bytes(5000))
            assert far.recv(5000, socket.MSG_WAITALL) == bytes(5000)
            assert read_traffic().tcp_bytes - before.tcp_bytes == 5000
            assert other.fileno() > 0


def test_what_rdma_ports_have_sent_is_added_up_and_ports_that_do_not_count_are_left_out(tmp_path: Path) -> None:
    for port, counted in {"mlx5_0/ports/1": "250\n", "mlx5_1/ports/1": "4\n", "mlx5_2/ports/1": "N/A (no PMA)\n"}.items():
        counters = tmp_path / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(counted)
    (tmp_path / "efa_0" / "ports" / "1").mkdir(parents=True)
    assert read_traffic(tmp_path).rdma_bytes == 4 * 254


@pytest.mark.processes
@pytest.mark.parametrize(("chosen", "carrier"), [("tcp,self", "tcp"), ("sm,self,tcp", "memory")])
def test_nixl_over_either_path_is_told_apart(chosen: str, carrier: str) -> None:
    told = {**os.environ, "UCX_TLS": chosen, "UCX_NET_DEVICES": "lo"}
    done = subprocess.run([sys.executable, "-c", SELF_TEST], env=told, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [carrier], done.stderr
