"""The prefix cache's key: a chained hash over fixed runs of tokens, the same on every node and router.

Hash blocks are 32 tokens whatever a node's block size, so that nodes of different block sizes name prefixes alike.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from twostep.core.ids import BlockHash

HASH_BLOCK_TOKENS = 32
HASH_BYTES = 16
HASH_SCHEME = "blake2b-128:chain:32:uint32le:v1"
SALT_RULE = "model+weights+adapter+cache_salt:v1"


def prefix_root(model: str, weights: str, adapter: str = "", cache_salt: bytes = b"") -> BlockHash:
    """Return the hash that a chain starts from; different weights, adapters or tenants never share a prefix."""
    parts = (model.encode(), weights.encode(), adapter.encode(), cache_salt)
    framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return BlockHash(blake2b(framed, digest_size=HASH_BYTES).digest())


def hash_chain(root: BlockHash, tokens: Sequence[int]) -> list[BlockHash]:
    """Return the hash of every full hash block of `tokens`, each covering all tokens before it too."""
    words = array("I", tokens)
    chain: list[BlockHash] = []
    parent = root
    for start in range(0, len(words) - len(words) % HASH_BLOCK_TOKENS, HASH_BLOCK_TOKENS):
        parent = BlockHash(
            blake2b(parent + words[start : start + HASH_BLOCK_TOKENS].tobytes(), digest_size=HASH_BYTES).digest()
        )
        chain.append(parent)
    return chain


def token_digest(tokens: Sequence[int]) -> bytes:
    """Return a digest of a whole token sequence, so that P and D can check that they speak of the same prompt."""
    return blake2b(array("I", tokens).tobytes(), digest_size=16).digest()
