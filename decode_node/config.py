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
    """Memory that prefill nodes write into; about a tenth of the KV cache is enough."""
    landing_share: Share = 0.5
    """The largest share of it that one request gets; a longer prompt uses its share as a ring."""
    unattached_share: Share = 0.8
    """The largest share of the KV cache that requests hold whose KV has not arrived yet."""
    pair_bytes: Annotated[int, Field(gt=0)] | None = None
    """The most landing space that all handoffs from one prefill node hold together; unset: three quarters of it."""
    lookahead_tokens: Annotated[int, Field(ge=0)] = 0
    """Room for output that is reserved together with the prompt, beside one block to decode into."""
    pause_unread_tokens: Annotated[int, Field(gt=0)] = 256
    """A request is paused, its KV kept, when its router leaves this many of its tokens unread, until they are read."""
    max_unread_tokens: Annotated[int, Field(gt=0)] = 1 << 20
    """A router that leaves this many tokens unread may send no more requests."""
