"""The ports of a router with several workers: theirs, and nobody else's."""

import socket

import pytest

from twostep.core.errors import ConfigError
from twostep.router.config import RouterConfig
from twostep.router.front.http.door import listen
from twostep.router.workers.claim import claimed

pytestmark = pytest.mark.processes


def test_workers_share_the_port_and_a_router_alone_does_not_get_it() -> None:
    with claimed(RouterConfig(port=0)) as (port, _), listen("127.0.0.1", port, reuse_port=True) as one:
        one.listen()
        with listen("127.0.0.1", port, reuse_port=True) as two:
            two.listen()
        with (
            pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"),
            listen("127.0.0.1", port) as stranger,
        ):
            stranger.listen()


def test_two_routers_never_share_a_port_not_even_before_their_workers_listen() -> None:
    with claimed(RouterConfig(port=0)) as (port, grpc_port):
        for config in (RouterConfig(port=port), RouterConfig(port=0, grpc_port=grpc_port)):
            with pytest.raises(ConfigError, match="Address already in use"), claimed(config):
                pass
    with claimed(RouterConfig(port=port, grpc_port=grpc_port)) as again:
        assert again == (port, grpc_port)


def test_nobody_is_connected_to_a_port_that_is_only_claimed() -> None:
    with claimed(RouterConfig(port=0)) as (port, _), socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
