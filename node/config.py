"""The configuration that both node programs share."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from twostep.core.certificates import TlsConfig
from twostep.core.config import Port, Seconds, config
from twostep.core.otlp import TracingConfig
from twostep.engine.config import EngineConfig

Count = Annotated[int, Field(gt=0)]
TELLS_PER_DEADLINE = 6


@config
class Timers:
    """How long a node waits for others, in seconds. Time is for liveness; no memory is reused because of it alone."""

    lease_s: Seconds = 10.0
    """A router that has been silent for this long has abandoned its requests; a router may ask for another value."""
    progress_s: Seconds = 30.0
    """A handoff whose other side shows no progress for this long has failed."""
    retry_s: Seconds = 3.0
    """How long a decode node keeps the blocks of a request whose prefill failed for the router's next attempt."""
    call_s: Seconds = 5.0
    """The deadline of one call to a peer; calls that must arrive are repeated."""
    handshake_s: Seconds = 20.0
    """The deadline of one handshake with a peer."""
    handshake_retry_s: Seconds = 2.0
    """The pause after a handshake that failed."""
    landing_cooldown_s: Seconds = 60.0
    """How long landing space rests when nobody can prove that all writes to it are done."""
    pause_s: Seconds = 60.0
    """A request that has been paused for this long, because nobody takes its tokens, is ended."""
    stall_s: Seconds = 60.0
    """A node whose engine has work but finishes no step for this long is not ready."""
    stuck_s: Seconds = 30.0
    """A node whose event loop does not turn for this long reports, at /health, that it should be restarted."""
    drain_s: Seconds = 120.0
    """How long a node that was told to stop lets its requests finish."""
    audit_s: Seconds = 10.0
    """How often an idle node recomputes its accounts of blocks and landing space."""
    bypass_s: Seconds = 5.0
    """How long a request without room lets later ones pass for which there is room."""
    tick_s: Seconds = 0.25
    """How often timers that may be this late are checked; deadlines of requests are checked when they are due."""

    @property
    def tell_s(self) -> float:
        """How often a prefill node tells how far its legs are."""
        return self.progress_s / TELLS_PER_DEADLINE

    @property
    def silence_s(self) -> float:
        """How long a prefill node that has told of a leg may be silent about it: it goes on elsewhere within `progress_s`."""
        return self.progress_s - self.tell_s

    @property
    def max_gap_s(self) -> float:
        """The most of a pause of this process that its timers count: nobody could be heard meanwhile."""
        return 8 * self.tick_s


@config
class NodeConfig:
    """What a prefill and a decode node have in common."""

    model: str = "fake"
    """A Hugging Face model folder, or `fake`."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Port = 0
    """The gRPC port; 0 takes any free one."""
    metrics_port: Port = 0
    """The port of the page for probes and Prometheus (/health, /ready, /metrics); 0 takes any free one."""
    tls: TlsConfig | None = None
    """Certificates with which routers and nodes prove that they belong together; without them, anybody may call this node."""
    advertise_host: str = ""
    """The name or address at which peers reach this node; by default `host`, or this machine's address if it is a wildcard."""
    address_file: Path | None = None
    """Where to write the bound addresses as JSON once the node listens."""
    node_id: str = ""
    """A name that no other node has; by default the environment's POD_UID, else host name, process id and a random part."""
    tracing: TracingConfig | None = None
    """Where to send the spans of requests that their router traces."""
    transport: Literal["nixl", "ucx", "local"] = "nixl"
    """What carries KV between nodes, the same on all of them; `ucx` is for clusters without NIXL, `local` for one process."""
    allow_host_staged: bool = True
    """Whether a GPU's KV may go through host memory when the transport cannot reach the GPU's memory. If not, such a node is
    never ready, as GPUDirect is missing."""
    max_queued: Count = 256
    """Most requests that wait for memory; one more is refused."""
    max_bypasses: Annotated[int, Field(ge=0)] = 16
    """How many requests whose turn comes later may pass one that has no room yet; 0 keeps strict order."""
    max_peers: Count = 1024
    """Most peers that a node knows; one more is turned away."""
    engine: EngineConfig = EngineConfig()
    timers: Timers = Timers()
