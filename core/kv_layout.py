"""The layout of KV memory, in blocks and in landing extents: shapes, strides and offsets.

A pool is `[layer][block][kv_head][token][k|v][dim]`: a block's K and V lie together and a head range is contiguous.
"""

from dataclasses import dataclass

LAYOUT_VERSION = 1
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Geometry of one node's KV cache. All sizes in bytes, all counts per node."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str

    @property
    def head_token_bytes(self) -> int:
        """K and V of one token in one head of one layer."""
        return 2 * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def layer_block_bytes(self) -> int:
        """One block in one layer: the unit that crosses the wire."""
        return self.num_kv_heads * self.block_tokens * self.head_token_bytes

    @property
    def block_bytes(self) -> int:
        """One block in all layers."""
        return self.num_layers * self.layer_block_bytes

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_tokens)

    def pool_shape(self, num_blocks: int) -> tuple[int, int, int, int, int]:
        """Return the pool's shape in 32-bit words: [layer, block, kv_head, token, word]."""
        return self.num_layers, num_blocks, self.num_kv_heads, self.block_tokens, self.head_token_bytes // 4

    @property
    def layout_id(self) -> str:
        """What must be equal on both sides: the order of the dimensions and the stored type, not the block size."""
        return f"v{LAYOUT_VERSION}:layer.block.head.token.kv.dim:{self.dtype}"
