"""The decode node's configuration."""

from typing import Annotated

from pydantic import Field

from twostep.core.config import config
from twostep.node.config import NodeConfig

Share = Annotated[float, Field(gt=0, le=1)]


@config
class DecodeNodeConfig(NodeConfig):
    """Everything a decode node can be told."""

    landing_bytes: Annotated[int, Field(gt=0)] = 128 << 20
    """Memory that prefill nodes write into; about a tenth of the KV cache does."""
    landing_share: Share = 0.5
    """The most of it that one request gets; a longer prompt passes through that as through a ring."""
    unattached_share: Share = 0.8
    """The most of the KV cache that requests hold whose KV is not there yet."""
    pair_bytes: Annotated[int, Field(gt=0)] | None = None
    """The most landing space that the handoffs of one prefill node hold together; unset: three quarters of it."""
    lookahead_tokens: Annotated[int, Field(ge=0)] = 0
    """Room for output that is reserved with the prompt, beside one block for decode."""
    pause_unread_tokens: Annotated[int, Field(gt=0)] = 256
    """A request of which its router leaves this many tokens unread is paused, its KV kept, until they are read."""
    max_unread_tokens: Annotated[int, Field(gt=0)] = 1 << 20
    """A router that leaves this many tokens unread gets no more requests in."""
