"""A network of namespaces, one for each program, joined by a bridge; its links can be cut, silently as real ones are.

The bridge lies in a namespace of its own, the hub, which the test itself reaches too. Needs root and iproute2.
"""

import itertools
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INTERFACE = "eth0"
SINK = "sink"


class Network:
    """Machines are named; `address_of` tells where each one is. `prefix` makes the names of namespaces unique."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self._hosts: dict[str, int] = {}
        self._numbers = itertools.count(2)

    def open(self) -> None:
        """Build the hub and the test's own way into it. Raises OSError where this is not allowed."""
        hub = self._namespace("hub")
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        # Packets that are sent here are never seen again.
        _ip("-n", hub, "link", "add", SINK, "type", "veth", "peer", "name", "sunk")
        _ip("-n", hub, "link", "set", SINK, "up")
        _ip("link", "add", self._prefix, "type", "veth", "peer", "name", "test", "netns", hub)
        self._plug("test")
        _ip("addr", "add", f"{self._subnet}.1/24", "dev", self._prefix)
        _ip("link", "set", self._prefix, "up")

    def close(self) -> None:
        for name in (*self._hosts, "hub"):
            subprocess.run(["ip", "netns", "delete", self._namespace(name)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "delete", self._prefix], check=False, stderr=subprocess.DEVNULL)

    def add(self, name: str) -> None:
        """Add a machine that all others can reach."""
        self._hosts[name] = next(self._numbers)
        space, hub = self._namespace(name), self._namespace("hub")
        _ip("netns", "add", space)
        _ip("-n", hub, "link", "add", name, "type", "veth", "peer", "name", INTERFACE, "netns", space)
        self._plug(name)
        _ip("-n", space, "addr", "add", f"{self.address_of(name)}/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            _ip("-n", space, "link", "set", interface, "up")

    def address_of(self, name: str) -> str:
        return f"{self._subnet}.{self._hosts[name]}"

    def inside(self, name: str) -> tuple[str, ...]:
        """Return what to put before a command that is to run on that machine."""
        return ("ip", "netns", "exec", self._namespace(name))

    @contextmanager
    def cut(self, *names: str) -> Iterator[None]:
        """Lose every packet between any two of `names`, in both directions; each still reaches all other machines."""
        self._isolate(names, "on")
        try:
            yield
        finally:
            self._isolate(names, "off")

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """Lose every packet from and to one machine."""
        _ip("-n", self._namespace("hub"), "link", "set", name, "down")
        try:
            yield
        finally:
            _ip("-n", self._namespace("hub"), "link", "set", name, "up")

    @contextmanager
    def forgotten_connections(self) -> Iterator[None]:
        """Lose every packet of the connections that are open now; new ones work. So a NAT forgets the idle."""
        hub = self.inside("hub")
        for name, connections in [(name, self._connections_of(name)) for name in self._hosts]:
            _run(*hub, "tc", "qdisc", "add", "dev", name, "clsact")
            for own_port, peer, peer_port in connections:
                match = [
                    "ip",
                    "dst",
                    f"{peer}/32",
                    "match",
                    "ip",
                    "sport",
                    own_port,
                    "0xffff",
                    "match",
                    "ip",
                    "dport",
                    peer_port,
                ]
                drop = ("action", "mirred", "egress", "redirect", "dev", SINK)
                where = ("dev", name, "ingress", "protocol", "ip", "u32", "match")
                _run(*hub, "tc", "filter", "add", *where, *match, "0xffff", *drop)
        try:
            yield
        finally:
            for name in self._hosts:
                _run(*hub, "tc", "qdisc", "delete", "dev", name, "clsact")

    def _connections_of(self, name: str) -> list[tuple[str, str, str]]:
        """Return (own port, peer's address, peer's port) of each connection to another machine than the test's."""
        listed = _run(*self.inside(name), "ss", "-tnH", "state", "established").split("\n")
        ends = [[end.rpartition(":") for end in line.split()[2:4]] for line in listed if line]
        addresses = [(own[2], peer[0].removeprefix("[::ffff:").rstrip("]"), peer[2]) for own, peer in ends]
        return [one for one in addresses if one[1] in map(self.address_of, self._hosts)]

    def _isolate(self, names: Sequence[str], state: str) -> None:
        for name in names:
            _ip("-n", self._namespace("hub"), "link", "set", name, "type", "bridge_slave", "isolated", state)

    def _plug(self, port: str) -> None:
        hub = self._namespace("hub")
        _ip("-n", hub, "link", "set", port, "master", "bridge")
        _ip("-n", hub, "link", "set", port, "up")

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"


@contextmanager
def network() -> Iterator[Network]:
    """Raises OSError, saying what is not allowed, where no network can be made."""
    made = Network(f"ts{secrets.token_hex(4)}")
    try:
        made.open()
        yield made
    finally:
        made.close()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> str:
    """Return what a command prints. Raises OSError with what it complains about."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
