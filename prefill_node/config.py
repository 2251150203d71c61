"""The prefill node's configuration."""

from typing import Annotated

from pydantic import Field

from twostep.core.config import config
from twostep.node.config import NodeConfig
from twostep.prefill_node.pair_health import PairLimits


@config
class PrefillNodeConfig(NodeConfig):
    """Everything a prefill node can be told."""

    one_write_tokens: Annotated[int, Field(ge=0)] = 64
    """A missing range shorter than this goes out in one write when all of it is computed; 0 never waits."""
    allow_tcp: bool = True
    """Whether KV may cross over TCP. Where it may not, a pair whose probe did has failed: RDMA was meant, and is not there."""
    pairs: PairLimits = PairLimits()
