"""A network of namespaces, one for each program, joined by a bridge; its links can be cut, silently as real ones are.

The bridge lies in a namespace of its own, the hub, which the test itself reaches too. Needs root and iproute2.
"""

import itertools
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

INTERFACE = "eth0"
SINK = "sink"
DROP = f"action mirred egress redirect dev {SINK}"


@dataclass(frozen=True, slots=True)
class _Connection:
    """One side of a TCP connection."""

    own_port: str
    peer: str
    peer_port: str

    @classmethod
    def read(cls, line: str) -> Self:
        """Read a line of `ss -tnH state established`: two queues, own address and port, the peer's."""
        own, peer = (end.rpartition(":") for end in line.split()[2:4])
        return cls(own[2], peer[0].removeprefix("[::ffff:").rstrip("]"), peer[2])

    @property
    def match(self) -> str:
        """What finds its packets, in the words of `tc`'s u32."""
        return f"match ip dst {self.peer}/32 match ip sport {self.own_port} 0xffff match ip dport {self.peer_port} 0xffff"


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
        found = {name: self._connections_of(name) for name in self._hosts}
        for name, connections in found.items():
            self._control_traffic(f"qdisc add dev {name} clsact")
            for one in connections:
                self._control_traffic(f"filter add dev {name} ingress protocol ip u32 {one.match} {DROP}")
        try:
            yield
        finally:
            for name in self._hosts:
                self._control_traffic(f"qdisc delete dev {name} clsact")

    def _connections_of(self, name: str) -> list["_Connection"]:
        """Return the connections of one machine to any other but the test's."""
        others = set(map(self.address_of, self._hosts))
        listed = _run(*self.inside(name), "ss", "-tnH", "state", "established").splitlines()
        return [one for one in map(_Connection.read, listed) if one.peer in others]

    def _control_traffic(self, words: str) -> None:
        _run(*self.inside("hub"), "tc", *words.split())

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
