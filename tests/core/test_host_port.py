import pytest

from twostep.core.host_port import join_host_port


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:80"),
        ("node-1", "node-1:80"),
        ("::", "[::]:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("[::1]", "[::1]:80"),
    ],
)
def test_an_ipv6_host_stands_in_brackets(host: str, address: str) -> None:
    assert join_host_port(host, 80) == address
