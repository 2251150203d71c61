"""What the router can be told: where it listens, which nodes it uses, and its limits."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from twostep.core.certificates import FrontTlsConfig, TlsConfig
from twostep.core.config import Port, Seconds, config
from twostep.core.otlp import TracingConfig
from twostep.router.discovery.config import DiscoveryConfig
from twostep.router.text.model_folder import is_fake

Count = Annotated[int, Field(gt=0)]


@config
class RouterConfig:
    model: str = "fake"
    """Folder of the model in Hugging Face format (only its tokenizer is read), or `fake`."""
    served_model_name: str | None = None
    """The name clients ask for; by default the folder's name."""
    chat_template: Path | None = None
    """A Jinja file to use instead of the model folder's own chat template."""
    prefill: tuple[str, ...] = ()
    """Addresses of prefill nodes, `host:port`."""
    decode: tuple[str, ...] = ()
    """Addresses of decode nodes, `host:port`."""
    discovery: DiscoveryConfig = DiscoveryConfig()
    """Another way to find the nodes than these two lists."""
    max_peers: Count = 64
    """How many nodes of the other pool each node is told of, the nearest first; some are told of a few more."""
    allow_decode_alone: bool = False
    """Whether a decode node may also compute the prompt when no prefill node can be had; counted as a bypass."""
    tls: TlsConfig | None = None
    """Certificates with which routers and nodes prove that they belong together; without, nodes are called in plain text."""
    front_tls: FrontTlsConfig | None = None
    """The certificate that clients are shown at both front doors; without, they are served in plain text."""
    tracing: TracingConfig | None = None
    """Where spans of requests are sent; without, nobody is told of traces."""
    router_id: str = ""
    """This router's name towards nodes, by default the host's; a random part is added at every start."""
    workers: Count = 1
    """Processes that share the ports, each a router of its own, with limits of its own: for more requests than one CPU core
    serves. More are of no use than there are cores."""
    host: str = "127.0.0.1"
    port: Port = 8000
    """TCP port of the HTTP server; 0 takes any free one."""
    grpc_port: Port | None = None
    """TCP port of the gRPC server; unset: the one after `port`, or any free one where that is 0."""
    address_file: Path | None = None
    """Where to write `{"http": "host:port", "grpc": "host:port"}` as soon as the router listens."""
    lease_s: Seconds = 6.0
    """A node frees this router's requests when it has heard nothing for this long. Heartbeats go out every third of it."""
    node_lost_s: Seconds = 2.0
    """A decode node whose token stream cannot be reopened for this long is given up."""
    hedge_after_s: Seconds = 1.0
    """When a decode node has not answered a reservation for this long, another one is asked as well, and the first to grant it
    gets the request. This counts towards the budget of new attempts."""
    request_timeout_s: Seconds = 600.0
    """Absolute deadline of a request, from its arrival to its last token."""
    client_send_s: Seconds = 30.0
    """A client that has not sent its whole request after this long is answered with 408 and disconnected."""
    client_stall_s: Seconds = 30.0
    """A client that reads nothing for this long is disconnected."""
    client_idle_s: Seconds = 75.0
    """A connection without a request for this long is closed. Clients and proxies should close theirs earlier: a request that
    arrives as it closes is lost."""
    keep_alive_s: Seconds = 15.0
    """After this long without a token, a stream sends a comment, so that no proxy ends it."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may read the replies, such as `https://chat.example.org`; `*` for all of them."""
    drain_s: Seconds = 30.0
    """How long requests in flight may go on after SIGTERM."""
    node_wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How long a request waits for nodes when none can serve it, such as when both pools are scaled to zero. With 0 it is
    refused with 503 at once, and a router without nodes is not ready; otherwise it is, so that requests can wake them."""
    recovery_wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """How long a request that has lost a node waits for another one to be ready, before it fails; one without a token yet waits
    for `node_wait_s`, where that is longer."""
    max_attempts: Count = 5
    """How many times one request may be placed, the first included."""
    retry_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Budget of new attempts, as a share of all requests; those after a node that is lost or drains are not counted."""
    retry_reserve: Count = 64
    """New attempts that are always possible at once, and again every minute, whatever that share is."""
    max_in_flight: Count = 1024
    """Requests served at once; one more is refused with 429."""
    ahead_s: Seconds = 4.0
    """Most seconds of prompt work, by measured rates, that are sent ahead to each node; the rest waits in the router."""
    queue_s: Seconds = 30.0
    """A request that would wait longer than this is refused with 429 and told when there will be room."""
    prefix_index_bytes: Count = 256 << 20
    """About how much memory the index of the nodes' prefix caches takes; when it is full, the oldest entries are forgotten."""
    prefix_memory_s: Seconds = 300.0
    """How long a prompt is assumed to be in the cache of a node that does not report what its cache holds."""
    spread_s: Seconds = 2.0
    """A node that has this much more work ahead than others, in seconds, is no longer preferred for the prefix it holds, so
    that others compute it too. For a request with a wish for its first token, that wish counts if it is shorter."""
    max_body_bytes: Count = 4 << 20
    """Largest request body; a larger one is refused with 413."""
    max_held_body_bytes: Count = 256 << 20
    """Bodies held at once, from their first byte until their prompts are tokens; more are refused with 429."""
    max_buffered_tokens: Count = 1024
    """Tokens kept for a client that reads too slowly; beyond that its request is ended."""

    @property
    def heartbeat_s(self) -> float:
        return self.lease_s / 3

    @property
    def grpc_port_or_next(self) -> int:
        """The port to bind for gRPC."""
        return self.grpc_port if self.grpc_port is not None else self.port and self.port + 1

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or ("fake" if is_fake(self.model) else Path(self.model).name)
