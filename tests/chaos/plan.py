"""What a test starts: how many of each program, with short timers, on this machine or on machines of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from twostep.tests.chaos.network import INTERFACE, Network
from twostep.tests.chaos.programs import Program

Settings = Mapping[str, object]
NOTHING: Settings = {}
MODEL = "fake:vocab_size=128,step_s=0.01"
NODE: Settings = {
    "model": MODEL,
    "engine.dtype": "float32",
    "engine.kv_bytes": 8 << 20,
    "engine.layer_group": 2,
    "timers.progress_s": 1.5,
    "timers.retry_s": 2,
    "timers.call_s": 1,
    "timers.handshake_s": 3,
    "timers.handshake_retry_s": 0.2,
    "timers.landing_cooldown_s": 0.5,
    "timers.tick_s": 0.1,
}
ROLES: Mapping[str, Settings] = {"prefill": NODE, "decode": {**NODE, "landing_bytes": 2 << 20}}
ROUTER: Settings = {
    "model": MODEL,
    "port": 0,
    "lease_s": 1.5,
    "node_lost_s": 1,
    "request_timeout_s": 30,
    "recovery_wait_s": 5,
}
SLOW: Settings = {"model": "fake:vocab_size=128,step_s=0.005,token_s=0.001"}
"""Prompts take a moment: while the first requests are decoding, the last are in prefill."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Programs are named p0, d0, r0 and on. Settings are for all nodes, by role, and by name; a later one wins.

    `modules` are a test's own programs by role, `environment` is added to that of all programs.
    """

    folder: Path
    num_prefill: int = 2
    num_decode: int = 2
    num_routers: int = 1
    nodes: Settings = field(default_factory=dict)
    roles: Mapping[str, Settings] = field(default_factory=dict)
    each: Mapping[str, Settings] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network | None = None

    def prefill_programs(self) -> list[Program]:
        return self._nodes("prefill", self.num_prefill)

    def decode_programs(self) -> list[Program]:
        return self._nodes("decode", self.num_decode)

    def router_programs(self, prefill: Sequence[Program], decode: Sequence[Program]) -> list[Program]:
        """Return the routers over nodes that listen."""
        told = {"prefill": prefill, "decode": decode}
        addresses = {role: f"[{','.join(node.addresses['grpc'] for node in nodes)}]" for role, nodes in told.items()}
        names = [f"r{number}" for number in range(self.num_routers)]
        return [self._program(name, "twostep.router", {**ROUTER, **addresses, "router_id": name}) for name in names]

    def _nodes(self, role: str, count: int) -> list[Program]:
        module = self.modules.get(role, f"twostep.{role}_node")
        settings = {**ROLES[role], **self.nodes, **self.roles.get(role, NOTHING)}
        names = [f"{role[0]}{number}" for number in range(count)]
        return [self._program(name, module, {**settings, "node_id": name}) for name in names]

    def _program(self, name: str, module: str, settings: Settings) -> Program:
        settings = {**settings, **self.each.get(name, NOTHING)}
        if self.network is None:
            return Program(name, module, self.folder, settings, environment=self.environment)
        self.network.add(name)
        host = {"host": self.network.address_of(name)}
        # Machines share no memory, and their KV has only this network to cross.
        environment = {**self.environment, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}
        inside = self.network.inside(name)
        return Program(name, module, self.folder, {**settings, **host}, inside=inside, environment=environment)
