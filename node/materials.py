"""What a node is built from, whoever starts it."""

from dataclasses import dataclass, field

from twostep.core.spans import SpanSink
from twostep.core.threads import OWN_THREADS, Threads
from twostep.engine.runner import Runner
from twostep.kv_transfer.transport import Transport
from twostep.node.address import NodeAddress
from twostep.node.calls import Channels
from twostep.node.kv_path import KVPath
from twostep.node.metrics import NodeMetrics


@dataclass(frozen=True, slots=True)
class Materials:
    address: NodeAddress
    runner: Runner
    transport: Transport
    metrics: NodeMetrics
    channels: Channels = field(default_factory=Channels)
    """To peers."""
    threads: Threads = OWN_THREADS
    path: KVPath | None = None
    """The way that KV takes; None between the nodes of one process."""
    spans: SpanSink | None = None
    """Where spans of traced requests go."""
