"""The names of a prompt's blocks, as nodes of each kind name them: what the prefix index is asked for."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from twostep.core.block_hash import HASH_BLOCK_TOKENS, hash_chain, prefix_root
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import BlockHash

MARK_TOKENS = 512
"""How far apart a prompt's marks are."""
RUN_TOKENS = 32 * HASH_BLOCK_TOKENS
MAX_RUNS = 4096
"""The blocks of so many runs of tokens, about 24 MB, are remembered by what they follow: prompts often begin alike."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What decides the names of a node's blocks, beside the tokens and the request's salt."""

    model: str
    weights: str
    adapter: str
    block_tokens: int

    @classmethod
    def of(cls, fingerprint: Fingerprint, geometry: Geometry) -> "Naming":
        return cls(fingerprint.model, fingerprint.weights, fingerprint.adapter, geometry.block_tokens)


class PromptHashes:
    """The full blocks of `tokens` that a node may have in its cache; each chain is made once, when it is first asked for.

    A prefix hit never covers the last token, whose computation yields the next.
    """

    def __init__(self, tokens: Sequence[int], cache_salt: bytes = b"") -> None:
        self.num_tokens = len(tokens)
        self._tokens = tokens
        self._salt = cache_salt
        self._chains: dict[tuple[str, str, str], list[BlockHash]] = {}
        self._blocks: dict[Naming, list[BlockHash]] = {}
        self._marks: dict[Naming, list[BlockHash]] = {}

    def blocks(self, naming: Naming) -> list[BlockHash]:
        """Return the names of the blocks, in order."""
        if naming not in self._blocks:
            usable = (self.num_tokens - 1) // naming.block_tokens
            per_block = naming.block_tokens // HASH_BLOCK_TOKENS
            self._blocks[naming] = self._chain(naming)[per_block - 1 : usable * per_block : per_block]
        return self._blocks[naming]

    def marks(self, naming: Naming) -> list[BlockHash]:
        """Return the blocks that stand for the prompt where little memory is to be spent: some on the way, and the last."""
        if naming not in self._marks:
            blocks, stride = self.blocks(naming), max(1, MARK_TOKENS // naming.block_tokens)
            self._marks[naming] = list(dict.fromkeys((*blocks[stride - 1 :: stride], *blocks[-1:])))
        return self._marks[naming]

    def _chain(self, naming: Naming) -> list[BlockHash]:
        key = (naming.model, naming.weights, naming.adapter)
        if key not in self._chains:
            self._chains[key] = chain_of(prefix_root(*key, self._salt), self._tokens)
        return self._chains[key]


def chain_of(root: BlockHash, tokens: Sequence[int]) -> list[BlockHash]:
    """Return what `hash_chain` returns, made of the runs that are remembered and of what follows them."""
    words = array("I", tokens)
    chain: list[BlockHash] = []
    num_whole = len(words) - len(words) % RUN_TOKENS
    for start in range(0, num_whole, RUN_TOKENS):
        chain += _run(chain[-1] if chain else root, words[start : start + RUN_TOKENS].tobytes())
    return chain + hash_chain(chain[-1] if chain else root, words[num_whole:])


@lru_cache(maxsize=MAX_RUNS)
def _run(parent: BlockHash, words: bytes) -> tuple[BlockHash, ...]:
    return tuple(hash_chain(parent, memoryview(words).cast("I")))
