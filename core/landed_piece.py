"""What has landed so far: some of P's blocks, in some layers, as they lie in a landing extent."""

from dataclasses import dataclass

from twostep.core.ticket import TokenRange


@dataclass(frozen=True, slots=True)
class LandedPiece:
    """Some of P's blocks, in some layers, as they lie in a landing extent.

    `source_blocks` counts P's blocks within `missing`; `num_slots` and `source_block_tokens` give the extent's shape
    `[layer][slot][kv_head][token][k|v][dim]`.
    """

    layers: range
    source_blocks: range
    missing: TokenRange
    source_block_tokens: int
    num_slots: int

    def tokens_of(self, source_block: int) -> TokenRange:
        """Return the positions that P's block number `source_block` of the range holds; the last may be partial."""
        start = self.missing.start + source_block * self.source_block_tokens
        return TokenRange(start, min(start + self.source_block_tokens, self.missing.end))
